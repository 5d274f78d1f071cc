"""Exact paths by marking jobs: three times a job, whatever the law of the delay.

If the servers share one service rate and one delay law, and the rule looks at the queues alone,
then when a job arrives, reaches its server and leaves does not depend on where jobs are sent. So
all times of a block of arrivals are drawn first, without regard to the rule, and ordered among the
arrivals: the job that starts between two arrivals is seen by the second. Then job after job is
marked with its server. A job's mark depends on those before it alone, so the marks of a few
arrivals are the one fixed point of the map from marks to queues to marks: it is found by
repetition, most often of once or twice, for all of them at a time. A rule with a memory marks them
one by one (`jaxlb.stochastic.memory`).

Jobs that stay longer than their block are kept in a table. Time is counted from the beginning of
the block, and records are counted from the next one on, so that single precision loses nothing in a
long run.
"""

import operator
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Integer, Key

from .. import _checks
from .._logarithms import log
from ..model import dynamics
from ..model.delays import AbstractPhaseDelay
from ..model.memory import AbstractMemory, LateLogit
from ..model.system import System
from . import memory, philox
from .delay_times import delay_times, require_times, times_left

# What a job's random numbers are for. A delay may take those that follow, by attempts.
ARRIVAL, DELAY, PRESENT, REST = 0, 1, 1 << 31, (1 << 31) + 1

# Arrivals marked at a time.
TOGETHER = 256
# Paths at once: a CPU is fastest with one, whose jobs are in its cache.
DEVICE_PATHS = 256


class Sizes(NamedTuple):
    """Lengths of arrays, powers of two: arrivals of a block, jobs that may outlast one, and those
    in transit at a time, of which only a rule with a memory keeps a list."""

    block: int
    table: int
    places: int = 0


class Jobs(NamedTuple):
    """When service of each job begins and ends, s from the beginning of the block, and where; and
    its place in a rule's memory, if there is one.

    In an empty place both are infinite.
    """

    start: Float[Array, " jobs"]
    end: Float[Array, " jobs"]
    server: Int[Array, " jobs"]
    place: Any = None


class State(NamedTuple):
    """What a block leaves to the next.

    - `block`: its number.
    - `record`: the number of the next record, `left` s from the beginning of the block.
    - `table`: jobs that are in the system then, or are seen there.
    - `memory`: what a rule with a memory remembers, else `None`.
    - `changes`: what each record has more than the one before, in transit and in service.
    - `good`: records before the first failure; all, as long as there is none.
    """

    block: Integer[Array, ""]
    record: Int[Array, ""]
    left: Float[Array, ""]
    table: Jobs
    memory: Any
    changes: Int[Array, "records servers 2"]
    good: Int[Array, ""]


def sizes(system: System, times: Any, scale: Any, start: Any) -> Sizes:
    """Lengths of arrays for `paths` with these arguments.

    **Raises:** `ValueError` where one of them is traced.
    """
    given = {"system": system.numbers, "times": times, "scale": scale, "initial": start}
    for name, value in given.items():
        _checks.concrete(name, value)
    rate = float(scale * system.num_servers * system.arrival_rate)
    arrivals = _most(rate * float(times[-1]))
    way = float(system.delay.mean)
    rule = system.routing
    late = float(rule.lag) if isinstance(rule, LateLogit) else 0.0
    stay = way + float(1 / jnp.min(system.service_rates)) + late
    table = _power_of_two(int(np.sum(start)) + min(arrivals, _most(rate * stay)))
    block = min(_power_of_two(arrivals), max(2 * table, 16 * TOGETHER))
    if not isinstance(rule, AbstractMemory):
        return Sizes(block, table)
    waiting = int(np.sum(np.asarray(start)[:, :-1]))
    return Sizes(block, table, _power_of_two(waiting + min(arrivals, _most(rate * way))))


def _most(mean: float) -> float:
    """A Poisson number of this mean is larger with a chance below 1e-14."""
    return mean + 8 * mean**0.5 + 24


def _power_of_two(number: float) -> int:
    return 1 << (int(np.ceil(number)) - 1).bit_length()


def paths(
    system: System,
    key: Key[Array, ""],
    replicas: Integer[Array, " replicas"],
    times: Float[Array, " times"],
    scale: Float[Array, ""],
    start: Int[Array, "servers compartments"],
    possible: Bool[Array, ""],
    sizes: Sizes,
) -> tuple[Int[Array, "replicas times servers 2"], Bool[Array, " replicas"]]:
    """Jobs in transit and in service at each time, for each replica, and whether they are valid.

    **Arguments:**

    - `replicas`: which paths; each depends on `key` and its own number alone.
    - `start`: counts at time zero, phases then service; for a delay without phases none in transit,
      then service.
    - `possible`: whether the arguments are in range; where not, no path begins.

    **Returns:** counts; a path that fails, because the rule gave no probabilities, a delay was
    negative or `sizes` were too small, stays at its last record before.

    **Raises:** `ValueError` if servers are known to differ in their rate, or times of the delay
    cannot be drawn.

    **Cost:** O(servers) a job, whatever the delay; memory of about 100 bytes for each place of
    `sizes` and each path at a time, which is one on a CPU.
    """
    require_times(system.delay)
    system.require_servers_alike()
    together = 1 if jax.default_backend() == "cpu" else DEVICE_PATHS
    return _paths(system, key, replicas, times, scale, start, possible, sizes, together)


@eqx.filter_jit
def _paths(
    system: System, key, replicas, times, scale, start, possible, sizes: Sizes, together: int
):
    inflow = scale * system.num_servers * system.arrival_rate
    rates = jnp.stack([inflow, system.common_service_rate])
    in_order = jnp.all(jnp.diff(times, prepend=0) >= 0) & jnp.isfinite(times[-1])
    fits = jnp.sum(start) <= sizes.table
    if isinstance(system.routing, AbstractMemory):
        fits = fits & (jnp.sum(start[:, :-1]) <= sizes.places)
    possible = possible & system.valid & in_order & fits & jnp.all(_checks.is_positive(rates))
    one = partial(_path, system, key, times, scale, start, possible, sizes)
    return jax.lax.map(one, replicas, batch_size=together if together > 1 else None)


def _path(system: System, key, times, scale, start, possible, sizes: Sizes, replica):
    """One path."""
    stream = philox.stream(key, replica[None], ARRIVAL)
    begun = jnp.stack([start[:, :-1].sum(axis=1), start[:, -1]], axis=1)
    table = _present(system, stream, jnp.where(possible, start, 0), sizes.table, times.dtype)
    changes = jnp.zeros((len(times), system.num_servers, 2), jnp.int32)
    changes = _recorded(changes, times, jnp.where(table.end < jnp.inf, 0.0, jnp.inf), table)
    table, remembered = _seen(system, table), None
    if isinstance(system.routing, AbstractMemory):
        remembered, place = memory.begin(system, scale, sizes.places, table.start, table.server)
        table = table._replace(place=place)
    state = State(
        block=jnp.uint32(0),
        record=jnp.int32(0),
        left=times[0],
        table=table,
        memory=remembered,
        changes=changes,
        good=jnp.where(possible, len(times), 0).astype(jnp.int32),
    )
    state = jax.lax.while_loop(
        lambda state: (state.record < len(times)) & (state.good == len(times)),
        lambda state: _block(system, stream, times, scale, sizes, state),
        state,
    )
    jobs = jnp.concatenate([begun[None], jnp.cumsum(state.changes, axis=0, dtype=jnp.int32)])
    last = jnp.minimum(jnp.arange(1, len(times) + 1), state.good)
    return jobs[last], state.good == len(times)


def _present(system: System, stream: philox.Stream, start, places: int, dtype) -> Jobs:
    """The jobs of the start, with the times that are left to them."""
    phases = start.shape[1] - 1
    place = jnp.arange(places)
    kind = _ranks(jnp.cumsum(start), operator.le, place)
    there = kind < start.size
    server, phase = jnp.where(there, kind // (phases + 1), 0), kind % (phases + 1)
    waits = there & (phase < phases)
    job = place.astype(jnp.uint32)
    begin = jnp.zeros(places, dtype)
    if isinstance(system.delay, AbstractPhaseDelay):
        rest = times_left(
            system.delay, _use(stream, REST), job, jnp.where(waits, phase, phases), dtype
        )
        begin = jnp.where(waits, rest, 0.0)
    (service,) = philox.uniforms(_use(stream, PRESENT), job, 1, dtype)
    end = begin - log(service) / system.common_service_rate.astype(dtype)
    return Jobs(jnp.where(there, begin, jnp.inf), jnp.where(there, end, jnp.inf), server)


def _block(
    system: System, stream: philox.Stream, times, scale, sizes: Sizes, state: State
) -> State:
    """One block of arrivals."""
    until = state.left + (times - times[state.record])
    until = jnp.where(jnp.arange(len(times)) < state.record, -jnp.inf, until)
    number = state.block * np.uint32(sizes.block) + jnp.arange(sizes.block, dtype=jnp.uint32)
    gaps, services, chances = philox.uniforms(_use(stream, ARRIVAL), number, 3, times.dtype)
    inflow = scale * system.num_servers * system.arrival_rate
    arrival = _running_sum(-log(gaps) / inflow.astype(times.dtype))
    delay = delay_times(system.delay, _use(stream, DELAY), number, times.dtype)
    # A job is never seen by itself, so that marks have a fixed point.
    start = arrival + jnp.maximum(delay, 0)
    end = start - log(services) / system.common_service_rate.astype(times.dtype)
    new = Jobs(start, end, jnp.zeros(sizes.block, jnp.int32))
    wanted = _ranks(arrival, operator.le, until[-1])
    given = system, scale, arrival, chances, state.table
    remembered = state.memory
    if remembered is None:
        server, good = _marked(*given, _seen(system, new), wanted)
        new = new._replace(server=server)
    else:
        new = new._replace(place=new.server)
        new, good, remembered = memory.marked(*given, new, wanted, remembered)
    good = good & (delay >= 0)
    table, fits = _left_over(state.table, _seen(system, new), arrival[-1], sizes.table)
    # The time of the first failure; those after the last record do not count.
    failure = jnp.min(jnp.where(good, jnp.inf, arrival))
    failure = jnp.minimum(failure, jnp.where(fits, jnp.inf, arrival[-1]))
    failed = failure <= until[-1]
    before = jnp.sum(until < failure, dtype=jnp.int32)
    record = jnp.sum(until <= arrival[-1], dtype=jnp.int32)
    return State(
        block=state.block + 1,
        record=record,
        left=until[jnp.minimum(record, len(times) - 1)] - arrival[-1],
        table=table,
        memory=remembered,
        changes=_recorded(state.changes, until, arrival, new),
        good=jnp.where(failed, before, state.good),
    )


def _seen(system: System, jobs: Jobs) -> Jobs:
    """Jobs as the dispatcher sees them; those in service at time zero were there before."""
    rule = system.routing
    if not isinstance(rule, LateLogit):
        return jobs
    lag = rule.lag.astype(jobs.start.dtype)
    start = jnp.where(jobs.start > 0, jobs.start + lag, jobs.start)
    return jobs._replace(start=start, end=jobs.end + lag)


def _marked(system: System, scale, arrival, chances, table: Jobs, new: Jobs, wanted):
    """The server of each of the first `wanted` new jobs, and whether the shares were right."""
    block, servers = len(arrival), system.num_servers
    together = min(TOGETHER, block)
    if isinstance(system.routing, LateLogit):
        system = eqx.tree_at(lambda system: system.routing, system, system.routing.rule)
    # Row k: what arrival k finds more than the one before; the last is found by none.
    rows = partial(_ranks, arrival, operator.le)
    changes = jnp.zeros((servers, block + 1), jnp.int32)
    changes = _moved(changes, table.server, rows(table.start), rows(table.end))
    first, last = rows(new.start), rows(new.end)

    def route(queue, chance):
        """Servers by these queues."""
        share = jax.vmap(lambda q: dynamics.shares(system, q[:, None], scale), -1, -1)(queue)
        share = jax.lax.optimization_barrier(share)
        passed, total = jnp.zeros(together, jnp.int32), jnp.zeros_like(share[0])
        for one in share[:-1]:
            total = total + one
            passed = passed + (chance >= total)
        return passed, jax.vmap(dynamics.are_shares, -1)(share)

    def some(number, carry):
        queue, changes, server, good = carry
        at = number * together
        here = [jax.lax.dynamic_slice_in_dim(v, at, together) for v in (first, last, chances)]
        starts, ends, chance = here
        rows = jax.lax.dynamic_slice_in_dim(changes, at, together, axis=1)
        known = queue[:, None] + _running_sum(rows)
        start, end = (jnp.minimum(row - at, together) for row in (starts, ends))

        def again(carry):
            marks = carry[0]
            own = jnp.zeros((servers, together + 1), jnp.int32)
            own = _moved(own, marks, start, end)[:, :-1]
            queues = known + _running_sum(own)
            new, right = route(queues, chance)
            return new, right, queues, jnp.any(new != marks)

        marks, right = route(known, chance)
        carry = marks, right, known, jnp.any(start < together)
        marks, right, queues, *_ = jax.lax.while_loop(lambda carry: carry[3], again, carry)
        changes = _moved(changes, marks, starts, ends)
        server = jax.lax.dynamic_update_slice_in_dim(server, marks, at, 0)
        good = jax.lax.dynamic_update_slice_in_dim(good, right, at, 0)
        return queues[:, -1], changes, server, good

    empty = jnp.zeros(servers, jnp.int32)
    carry = empty, changes, jnp.zeros(block, jnp.int32), jnp.ones(block, bool)
    *_, server, good = jax.lax.fori_loop(0, -(-wanted // together), some, carry)
    return server, good


def _left_over(table: Jobs, new: Jobs, length, places: int) -> tuple[Jobs, Bool[Array, ""]]:
    """The table at the end of a block of this length, s, and whether it was long enough."""
    jobs = jax.tree.map(lambda *pair: jnp.concatenate(pair), table, new)
    stays = (jobs.end > length) & (jobs.end < jnp.inf)
    count = _running_sum(stays.astype(jnp.int32))
    place = jnp.where(stays, count - 1, places)

    def kept(values, empty):
        return jnp.full(places, empty, values.dtype).at[place].set(values, mode="drop")

    start, end = (kept(time - length, jnp.inf) for time in (jobs.start, jobs.end))
    rest = jax.tree.map(lambda values: kept(values, 0), jobs._replace(start=None, end=None))
    return rest._replace(start=start, end=end), count[-1] <= places


def _recorded(changes, until, born, jobs: Jobs):
    """`changes` of records until which there is so much time, s, with those by these jobs."""
    born, start, end = (_ranks(until, operator.lt, time) for time in (born, jobs.start, jobs.end))
    for record, place, change in (born, 0, 1), (start, 0, -1), (start, 1, 1), (end, 1, -1):
        # What no record sees is left out.
        changes = changes.at[record, jobs.server, place].add(change, mode="drop")
    return changes


def _moved(changes, server, first, last):
    """`changes` with jobs that are there from row `first` until row `last`."""
    changes = changes.at[server, first].add(1, mode="promise_in_bounds")
    return changes.at[server, last].add(-1, mode="promise_in_bounds")


def _ranks(levels, passed, values):
    """How many of the increasing levels are passed by each value: `operator.le`, or `lt`.

    By bisection: faster on a CPU than `jnp.searchsorted`, which also orders NaN.
    """
    count = len(levels)
    steps = count.bit_length()

    def step(number, rank):
        middle = rank + (jnp.int32(1 << steps - 1) >> number)
        level = levels[jnp.minimum(middle, count) - 1]
        return jnp.where((middle <= count) & passed(level, values), middle, rank)

    return jax.lax.fori_loop(0, steps, step, jnp.zeros(jnp.shape(values), jnp.int32))


def _running_sum(values):
    """Sums along the last axis: by a loop, which is faster on a CPU than `jnp.cumsum`."""
    rows = jnp.moveaxis(values, -1, 0)

    def add(total, row):
        return total + row, total + row

    return jnp.moveaxis(jax.lax.scan(add, jnp.zeros_like(rows[0]), rows)[1], 0, -1)


def _use(stream: philox.Stream, use: int) -> philox.Stream:
    return stream._replace(use=jnp.uint32(use))
