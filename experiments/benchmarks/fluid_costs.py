"""What do calls of the fluid layer cost that no other solver is compared with?

The 64 random systems of `fluid` with 1 to 200 stages, two servers over [0, 20], 200 times; and for
cycles those of them that are past the Hopf point. Times are CPU seconds for one system, the least
of several, compilation apart; all in one process on one core. Docstrings quote them.

Run:     python -m experiments.benchmarks.fluid_costs
Writes:  experiments/benchmarks/results/fluid_costs.json
Cost:    four minutes on one core.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxlb as lb

from .. import _record
from .cycle_case import CycleCase
from .fluid_case import FluidCase

RESULT = Path(__file__).parent / "results" / "fluid_costs.json"
TIMES = np.linspace(0.0, 20.0, 200)


@dataclass(frozen=True)
class Config:
    """How often each call is timed."""

    repetitions: int = 5


@dataclass(frozen=True)
class Call:
    """A function of the numbers of one system, and how many are given to it how."""

    function: Callable[[jax.Array], Any]
    numbers: np.ndarray
    # `jax.vmap` of all, or `jax.lax.map` of one after another, or all in one call.
    batched: Callable = jax.vmap


def one_by_one(function: Callable) -> Callable:
    """`function` of each member, one after another."""
    return lambda members: jax.lax.map(function, members)


def system_of(numbers: Any, delay: Callable) -> lb.System:
    """Of theta, mean delay, arrival rate and service rate."""
    theta, mean, arrival_rate, service_rate = numbers[:4]
    return lb.System(arrival_rate, service_rate, delay(mean), lb.Logit(theta))


def erlang(stages: int) -> Callable:
    """Erlang delays by their mean."""
    return lambda mean: lb.Erlang(mean, stages)


def trajectories() -> Iterator[tuple[str, Call]]:
    """Queues of two servers, jobs in transit, and gradients of the mean square imbalance."""

    def of(delay, part, **options):
        return lambda numbers: part(lb.fluid.solve(system_of(numbers, delay), TIMES, **options))

    def queue(found):
        return found.queue

    def jobs(found):
        return found.jobs

    def mean_square(found):
        return jnp.mean((found.queue[:, 0] - found.queue[:, 1]) ** 2)

    for stages in (1, 2, 10, 50, 200):
        numbers, law = FluidCase(stages).numbers, erlang(stages)
        place = f"collocation, L = {stages}"
        yield f"{place}: queues", Call(of(law, queue), numbers)
        yield f"{place}: jobs in transit too", Call(of(law, jobs), numbers)
        yield f"{place}: gradient", Call(jax.grad(of(law, mean_square)), numbers)
    for stages in (1, 10, 50):
        numbers, law = FluidCase(stages).numbers, erlang(stages)
        call = of(law, queue, method="diffrax")
        yield f"Tsit5, L = {stages}: one by one", Call(call, numbers, one_by_one)
    numbers = FluidCase(1).numbers
    yield "method of steps: queues", Call(of(lb.Deterministic, queue), numbers)
    slope = jax.grad(of(lb.Deterministic, mean_square))
    yield "method of steps: gradient, vmap", Call(slope, numbers)
    yield "method of steps: gradient, one by one", Call(slope, numbers, one_by_one)


def chunks() -> Iterator[tuple[str, Call]]:
    """Diffrax with ten stages, all at once or sorted and in chunks."""
    numbers = FluidCase(10).numbers

    def many(size):
        def solved(numbers):
            systems = jax.vmap(lambda one: system_of(one, erlang(10)))(numbers)
            return lb.fluid.solve_many(systems, TIMES, chunk=size, method="diffrax").queue

        return solved

    for size in (1, 8, 16, 32, 64):
        yield f"solve_many, Tsit5, L = 10: chunks of {size}", Call(many(size), numbers, lambda f: f)


def observables() -> Iterator[tuple[str, Call]]:
    """Settling to a twentieth, with its distances to cliffs, and its gradient."""

    def settled(law, numbers):
        system = system_of(numbers, law)
        return lb.fluid.settling_time(system, horizon=20.0, tolerance=0.05)

    def value(law, numbers):
        return settled(law, numbers).value

    for stages in (2, 50):
        numbers, law, place = FluidCase(stages).numbers, erlang(stages), f"L = {stages}"
        yield f"settling time, {place}", Call(partial(settled, law), numbers)
        yield f"settling time, {place}: gradient", Call(jax.grad(partial(value, law)), numbers)


def cycles() -> Iterator[tuple[str, Call]]:
    """Harmonic balance by its sizes, normal forms and multipliers."""
    limit_cycle, numbers, law = lb.fluid.limit_cycle, CycleCase(10).numbers[:, :4], erlang(10)

    def find(*sizes):
        return lambda numbers: limit_cycle.find(system_of(numbers, law), *sizes)

    def both(numbers):
        found = find(32, 512)(numbers)
        return jnp.stack([found.amplitude, found.period])

    for sizes in ((16, 128), (32, 512), (64, 1024)):
        place = f"cycle, {sizes[0]} harmonics, {sizes[1]} samples"
        yield place, Call(find(*sizes), numbers)
    yield "cycle, 32 harmonics, 512 samples: gradients", Call(jax.jacrev(both), numbers)

    def multiplier(sizes):
        def found(numbers):
            system = system_of(numbers, law)
            return limit_cycle.floquet(system, limit_cycle.find(system, *sizes))

        return found

    yield (
        "cycle and multiplier, 16 harmonics: one by one",
        Call(multiplier((16, 128)), numbers, one_by_one),
    )
    yield "cycle and multiplier, 32 harmonics", Call(multiplier((32, 512)), numbers)
    yield (
        "normal form",
        Call(lambda numbers: limit_cycle.hopf_normal_form(system_of(numbers, law)), numbers),
    )


def cost(call: Call, repetitions: int) -> dict[str, float]:
    """CPU milliseconds of one system, and seconds of the first call of all."""
    numbers = jnp.asarray(call.numbers)
    begin = time.process_time()
    run = jax.jit(call.batched(call.function))
    jax.block_until_ready(run(numbers))
    first, spent = time.process_time() - begin, []
    for _ in range(repetitions):
        begin = time.process_time()
        jax.block_until_ready(run(numbers))
        spent.append(time.process_time() - begin)
    return {"milliseconds": 1e3 * min(spent) / len(numbers), "first_call_seconds": first}


def run(config: Config) -> dict:
    """The cost of every call."""
    rows = {}
    for calls in (trajectories(), chunks(), observables(), cycles()):
        for name, call in calls:
            rows[name] = cost(call, config.repetitions)
            print(name, rows[name], flush=True)
    return rows


if __name__ == "__main__":
    _record.on_one_core()
    _record.main(run, Config(), RESULT)
