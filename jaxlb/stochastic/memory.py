"""Marks of jobs by a rule with a memory: event by event, in the order of time.

The times of all jobs are known before their servers (`jaxlb.stochastic.marks`), so the next event
is at hand in two lists in order, of services that begin and that end. The rule is told of each. A
job in transit has a place of its own in what the rule remembers; free places are kept in a stack.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..model import dynamics
from ..model.system import System


class Memory(NamedTuple):
    """`state` of the rule; `free` places, the first `left` of them."""

    state: Any
    free: Int[Array, " places"]
    left: Int[Array, ""]


class Order(NamedTuple):
    """Jobs in the order of some time of theirs, s; the last is none and at infinity."""

    time: Float[Array, " jobs"]
    job: Int[Array, " jobs"]


class Events(NamedTuple):
    """Services that begin and that end in a block, and what arrivals draw their servers by."""

    system: System
    scale: Float[Array, ""]
    begin: Order
    end: Order
    arrival: Float[Array, " arrivals"]
    chance: Float[Array, " arrivals"]


class Sweep(NamedTuple):
    """How far the sweep is.

    - `now`: s from the beginning of the block.
    - `begun`, `ended`: services that have, in their order.
    - `queue`: jobs in service.
    - `server`, `place`: of each job, those of the table first.
    - `good`: whether the shares for each arrival were right and there was a place.
    """

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
    """What is remembered at time zero, and the place of each job in transit.

    `start`, s, and `server`: of each job; where there is none the start is infinite.
    """
    rule: Any = system.routing
    waits = (start > 0) & (start < jnp.inf)
    job = jnp.argsort(~waits, stable=True)
    share = jnp.full(system.num_servers, 1 / system.num_servers, start.dtype)

    def tell(number, state):
        return _kept(rule.sent, state, server[job[number]], number, share)

    count = jnp.minimum(jnp.sum(waits, dtype=jnp.int32), places)
    state = rule.start(system.num_servers, places, (1 / scale).astype(start.dtype))
    state = jax.lax.fori_loop(0, count, tell, jax.tree.map(jnp.asarray, state))
    place = jnp.cumsum(waits, dtype=jnp.int32) - 1
    return Memory(state, jnp.arange(places, dtype=jnp.int32)[::-1], places - count), place


def marked(system: System, scale, arrival, chances, table, new, wanted, memory: Memory):
    """The first `wanted` new jobs with their server and place, whether each could be marked, and
    what is remembered then."""
    known, block = len(table.start), len(arrival)
    begin, end = _ordered(table.start, new.start), _ordered(table.end, new.end)
    events = Events(system, scale, begin, end, arrival, chances)
    there = (table.start <= 0).astype(jnp.int32)
    state = Sweep(
        now=jnp.zeros_like(arrival[0]),
        begun=jnp.sum(begin.time <= 0, dtype=jnp.int32),
        ended=jnp.int32(0),
        queue=jnp.zeros(system.num_servers, jnp.int32).at[table.server].add(there),
        server=jnp.concatenate([table.server, new.server]),
        place=jnp.concatenate([table.place, new.place]),
        good=jnp.ones(block, bool),
        memory=memory,
    )

    def send(number, state):
        return _send(events, known, number, _until(events, arrival[number], state))

    state = jax.lax.fori_loop(0, wanted, send, state)
    # What is over at the end of the block is not in the next; after the last record none is.
    last = jnp.where(wanted == block, jnp.nextafter(arrival[-1], jnp.inf), 0.0)
    state = _until(events, last, state)
    new = new._replace(server=state.server[known:], place=state.place[known:])
    return new, state.good, state.memory


def _ordered(*times) -> Order:
    time = jnp.concatenate([*times, jnp.full(1, jnp.inf, times[0].dtype)])
    return Order(*jax.lax.sort((time, jnp.arange(len(time), dtype=jnp.int32)), num_keys=1))


def _until(events: Events, limit, state: Sweep) -> Sweep:
    """All services that begin or end before the limit, s."""
    begin, end = events.begin, events.end
    rule: Any = events.system.routing

    def leave(limit, state):
        def one(state):
            server = state.server[end.job[state.ended]]
            state = _wait(events, end.time[state.ended], state)
            return state._replace(ended=state.ended + 1, queue=state.queue.at[server].add(-1))

        return jax.lax.while_loop(lambda state: end.time[state.ended] < limit, one, state)

    def enter(state):
        time, job = begin.time[state.begun], begin.job[state.begun]
        state = _wait(events, time, leave(time, state))
        (told, free, left), server, place = state.memory, state.server[job], state.place[job]
        told = _kept(rule.arrived, told, server, place)
        memory = Memory(told, free.at[left].set(place), left + 1)
        queue = state.queue.at[server].add(1)
        return state._replace(begun=state.begun + 1, queue=queue, memory=memory)

    state = jax.lax.while_loop(lambda state: begin.time[state.begun] < limit, enter, state)
    return leave(limit, state)


def _send(events: Events, known: int, number, state: Sweep) -> Sweep:
    """The new job of this number is sent to a server."""
    rule: Any = events.system.routing
    state = _wait(events, events.arrival[number], state)
    told, free, left = state.memory
    queue = state.queue / events.scale
    share = dynamics.as_shares(rule.shares(told, queue), queue)
    right = dynamics.are_shares(share) & (left > 0)
    server, total = jnp.int32(0), jnp.zeros_like(share[0])
    for one in share[:-1]:
        total = total + one
        server = server + (events.chance[number] >= total)
    left = jnp.maximum(left - 1, 0)
    place, job = free[left], known + number
    return state._replace(
        server=state.server.at[job].set(server),
        place=state.place.at[job].set(place),
        good=state.good.at[number].set(right),
        memory=Memory(_kept(rule.sent, told, server, place, share), free, left),
    )


def _wait(events: Events, time, state: Sweep) -> Sweep:
    """The rule is told of the time until then, s from the beginning of the block."""
    rule: Any = events.system.routing
    queue, memory = state.queue / events.scale, state.memory
    told = _kept(rule.wait, memory.state, queue, time - state.now)
    return state._replace(now=time, memory=memory._replace(state=told))


def _kept(method: Any, state: Any, *given: Any) -> Any:
    """The state after this method of a rule, in the shapes and types that it had."""
    after = method(state, *given)
    if jax.tree.structure(after) == jax.tree.structure(state):
        # A rule may compute in a wider type than that of the path.
        after = jax.tree.map(lambda old, new: jnp.asarray(new, old.dtype), state, after)
    shown, wanted = (jax.tree.map(jnp.shape, value) for value in (after, state))
    if shown != wanted:
        raise ValueError(
            f"`routing` must keep the shapes of its state in `{method.__name__}`, which were "
            f"{wanted}, got {shown}."
        )
    return after
