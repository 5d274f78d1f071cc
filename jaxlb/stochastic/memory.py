"""Marks of jobs by a rule with a memory: event by event, in the order of time.

The times of all jobs are known before their servers (`jaxlb.stochastic.marks`), so that no event
has to be looked for. What happens to a job at its server is told to the rule when it happens, and
each job in transit has a place of its own in what the rule remembers.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..model import dynamics
from ..model.memory import AbstractMemory
from ..model.system import System


class Memory(NamedTuple):
    """`state` of the rule; `free` places, of which the first `count` are left."""

    state: Any
    free: Int[Array, " places"]
    count: Int[Array, ""]


class Order(NamedTuple):
    """Jobs in the order of some time of theirs, s; the last of no job and infinite."""

    time: Float[Array, " jobs"]
    job: Int[Array, " jobs"]


class Sweep(NamedTuple):
    """Where the sweep over a block is: s from its beginning, services begun and ended, jobs in
    service, and what is known of each job and each arrival."""

    now: Float[Array, ""]
    begun: Int[Array, ""]
    ended: Int[Array, ""]
    queue: Int[Array, " servers"]
    server: Int[Array, " jobs"]
    place: Int[Array, " jobs"]
    good: Bool[Array, " arrivals"]
    memory: Memory


def begin(
    system: System, scale: Float[Array, ""], places: int, start, server
) -> tuple[Memory, Int[Array, " jobs"]]:
    """What is remembered at time zero, and the places of jobs whose service is to begin.

    `start`, s, and `server`: of each job of the table, infinite in an empty place.
    """
    rule: Any = system.routing
    share = jnp.full(system.num_servers, 1 / system.num_servers, start.dtype)
    waits = (start > 0) & (start < jnp.inf)
    place = jnp.where(waits, jnp.cumsum(waits) - 1, 0).astype(jnp.int32)
    job = jnp.argsort(~waits, stable=True)

    def one(number, state):
        return rule.sent(state, server[job[number]], number, share)

    count = jnp.minimum(jnp.sum(waits), places).astype(jnp.int32)
    state = rule.start(system.num_servers, places, (1 / scale).astype(start.dtype))
    state = jax.lax.fori_loop(0, count, one, state)
    free = jnp.arange(places, dtype=jnp.int32)[::-1]
    return Memory(state, free, places - count), place


def marked(system: System, scale, arrival, chances, table, new, wanted, memory: Memory):
    """The server and the place of each of the first `wanted` new jobs, whether the shares were
    right and there was a place, and what is remembered then."""
    before = len(table.start)
    start, end = (_ordered(*pair) for pair in zip(table[:2], new[:2], strict=True))
    server, place = (
        jnp.concatenate(pair) for pair in ((table.server, new.server), (table.place, new.place))
    )
    there = (table.start <= 0).astype(jnp.int32)
    state = Sweep(
        now=jnp.zeros_like(arrival[0]),
        begun=jnp.sum(start.time <= 0, dtype=jnp.int32),
        ended=jnp.int32(0),
        queue=jnp.zeros(system.num_servers, jnp.int32).at[table.server].add(there),
        server=server,
        place=place,
        good=jnp.ones(len(arrival), bool),
        memory=memory,
    )

    def one(number, state):
        state = _until(system, scale, start, end, arrival[number], state)
        return _sent(system, scale, arrival, chances, before, number, state)

    state = jax.lax.fori_loop(0, wanted, one, state)
    # The next block begins after all that happens until the end of this one.
    state = _until(system, scale, start, end, jnp.nextafter(arrival[-1], jnp.inf), state)
    new = new._replace(server=state.server[before:], place=state.place[before:])
    return new, state.good, state.memory


def _ordered(*times) -> Order:
    time = jnp.concatenate([*times, jnp.full(1, jnp.inf, times[0].dtype)])
    job = jnp.arange(len(time), dtype=jnp.int32)
    return Order(*jax.lax.sort((time, job), num_keys=1))


def _until(system: System, scale, start: Order, end: Order, limit, state: Sweep) -> Sweep:
    """Beginnings and ends of services before the limit, s."""
    rule: Any = system.routing

    def leave(limit, state):
        def one(state):
            job = end.job[state.ended]
            state = _wait(rule, scale, end.time[state.ended], state)
            queue = state.queue.at[state.server[job]].add(-1)
            return state._replace(ended=state.ended + 1, queue=queue)

        return jax.lax.while_loop(lambda state: end.time[state.ended] < limit, one, state)

    def one(state):
        time, job = start.time[state.begun], start.job[state.begun]
        state = _wait(rule, scale, time, leave(time, state))
        server, place, memory = state.server[job], state.place[job], state.memory
        free = memory.free.at[memory.count].set(place)
        memory = Memory(rule.arrived(memory.state, server, place), free, memory.count + 1)
        queue = state.queue.at[server].add(1)
        return state._replace(begun=state.begun + 1, queue=queue, memory=memory)

    state = jax.lax.while_loop(lambda state: start.time[state.begun] < limit, one, state)
    return leave(limit, state)


def _wait(rule: AbstractMemory, scale, time, state: Sweep) -> Sweep:
    memory = state.memory
    after = rule.wait(memory.state, state.queue / scale, time - state.now)
    return state._replace(now=time, memory=memory._replace(state=after))


def _sent(system: System, scale, arrival, chances, before: int, number, state: Sweep) -> Sweep:
    """One job sent."""
    rule: Any = system.routing
    state = _wait(rule, scale, arrival[number], state)
    memory = state.memory
    share = rule.shares(memory.state, state.queue / scale)
    right = dynamics.are_shares(share) & (memory.count > 0)
    server, total = jnp.int32(0), jnp.zeros_like(share[0])
    for one in share[:-1]:
        total = total + one
        server = server + (chances[number] >= total)
    place = memory.free[memory.count - 1]
    after = rule.sent(memory.state, server, place, share)
    job = before + number
    return state._replace(
        server=state.server.at[job].set(server),
        place=state.place.at[job].set(place),
        good=state.good.at[number].set(right),
        memory=Memory(after, memory.free, jnp.maximum(memory.count - 1, 0)),
    )
