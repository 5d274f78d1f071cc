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
from dataclasses import dataclass, field
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


# Of every system: theta, mean delay, arrival rate, service rate; and of those with cycles.
NUMBERS, OSCILLATING = FluidCase(1).numbers[:, :4], CycleCase(10).numbers[:, :4]


@dataclass(frozen=True)
class Call:
    """A function of the numbers of one system, those of all, and how all are given to it:
    by `jax.vmap`, one after another, or at once."""

    function: Callable[[jax.Array], Any]
    numbers: np.ndarray = field(default_factory=lambda: NUMBERS)
    batched: Callable = jax.vmap


def one_by_one(function: Callable) -> Callable:
    """`function` of each member, one after another."""
    return lambda members: jax.lax.map(function, members)


def with_delay(delay: Callable) -> Callable[[Any], lb.System]:
    """A system by its numbers."""

    def system_of(numbers):
        theta, mean, arrival_rate, service_rate = numbers
        return lb.System(arrival_rate, service_rate, delay(mean), lb.Logit(theta))

    return system_of


def weighted(numbers: Any) -> lb.System:
    """Five stages, whose jobs count a third."""
    theta, mean, arrival_rate, service_rate = numbers
    rule = lb.WeightedLogit(theta, jnp.full(5, 1 / 3))
    return lb.System(arrival_rate, service_rate, lb.Erlang(mean, 5), rule)


def erlang(stages: int) -> Callable:
    """Erlang delays by their mean."""
    return lambda mean: lb.Erlang(mean, stages)


def of(system_of: Callable, part: Callable, **options: Any) -> Callable:
    """A part of the trajectory, by the numbers of its system."""
    return lambda numbers: part(lb.fluid.solve(system_of(numbers), TIMES, **options))


def queue(found: lb.fluid.Trajectory) -> jax.Array:
    """Of every server."""
    return found.queue


def jobs(found: lb.fluid.Trajectory) -> jax.Array:
    """Those in transit too."""
    return found.jobs


def mean_square(found: lb.fluid.Trajectory) -> jax.Array:
    """Of the imbalance."""
    return jnp.mean((found.queue[:, 0] - found.queue[:, 1]) ** 2)


def trajectories() -> Iterator[tuple[str, Call]]:
    """Queues of two servers, jobs in transit, and gradients of the mean square imbalance."""
    for stages in (1, 2, 10, 50, 200):
        system, place = with_delay(erlang(stages)), f"collocation, L = {stages}"
        yield f"{place}: queues", Call(of(system, queue))
        yield f"{place}: jobs in transit too", Call(of(system, jobs))
        yield f"{place}: gradient", Call(jax.grad(of(system, mean_square)))
    for stages in (1, 10, 50):
        call = of(with_delay(erlang(stages)), queue, method="diffrax")
        yield f"Tsit5, L = {stages}: one by one", Call(call, batched=one_by_one)
    fixed = with_delay(lb.Deterministic)
    yield "method of steps: queues", Call(of(fixed, queue))
    slope = jax.grad(of(fixed, mean_square))
    yield "method of steps: gradient, vmap", Call(slope)
    yield "method of steps: gradient, one by one", Call(slope, batched=one_by_one)


def other_laws() -> Iterator[tuple[str, Call]]:
    """Delays and rules that both methods can do; Diffrax also one by one."""
    coxian = np.array([[-3.0, 2.7, 0.0], [0.0, -4.0, 3.2], [0.0, 0.0, -2.0]])
    length = float(lb.PhaseType(np.eye(3)[0], coxian).mean)
    varied: Any = lb.from_mean_cv(1.0, 2.0)
    systems = {
        "mixed Erlang, 10": with_delay(lambda mean: lb.MixedErlang(mean, np.full(10, 0.1))),
        "Coxian, 3": with_delay(lambda mean: lb.PhaseType(np.eye(3)[0], coxian * length / mean)),
        "hyperexponential, 2": with_delay(
            lambda mean: lb.PhaseType(varied.initial, varied.generator / mean)
        ),
        "weighted, L = 5": weighted,
    }
    for name, system in systems.items():
        for method in ("collocation", "diffrax"):
            call, place = of(system, queue, method=method), f"{name}, {method}"
            slope = jax.grad(of(system, mean_square, method=method))
            yield f"{place}: queues", Call(call)
            yield f"{place}: gradient", Call(slope)
            if method == "diffrax":
                yield f"{place}: queues, one by one", Call(call, batched=one_by_one)
                yield f"{place}: gradient, one by one", Call(slope, batched=one_by_one)


def chunks() -> Iterator[tuple[str, Call]]:
    """Diffrax with ten stages, all at once or sorted and in chunks."""

    def many(size):
        def solved(numbers):
            systems = jax.vmap(with_delay(erlang(10)))(numbers)
            return lb.fluid.solve_many(systems, TIMES, chunk=size, method="diffrax").queue

        return solved

    for size in (1, 8, 16, 32, 64):
        call = Call(many(size), batched=lambda function: function)
        yield f"solve_many, Tsit5, L = 10: chunks of {size}", call


def observables() -> Iterator[tuple[str, Call]]:
    """Settling to a twentieth, with its distances to cliffs, and its gradient."""

    def settled(stages, numbers):
        system = with_delay(erlang(stages))(numbers)
        return lb.fluid.settling_time(system, horizon=20.0, tolerance=0.05)

    def value(stages, numbers):
        return settled(stages, numbers).value

    for stages in (2, 50):
        place = f"settling time, L = {stages}"
        yield place, Call(partial(settled, stages))
        yield f"{place}: gradient", Call(jax.grad(partial(value, stages)))


def cycles() -> Iterator[tuple[str, Call]]:
    """Harmonic balance by its sizes, normal forms and multipliers."""
    limit_cycle, system_of = lb.fluid.limit_cycle, with_delay(erlang(10))

    def find(*sizes):
        return lambda numbers: limit_cycle.find(system_of(numbers), *sizes)

    def both(numbers):
        found = find(32, 512)(numbers)
        return jnp.stack([found.amplitude, found.period])

    for sizes in ((16, 128), (32, 512), (64, 1024)):
        place = f"cycle, {sizes[0]} harmonics, {sizes[1]} samples"
        yield place, Call(find(*sizes), OSCILLATING)
    yield "cycle, 32 harmonics, 512 samples: gradients", Call(jax.jacrev(both), OSCILLATING)

    def multiplier(sizes):
        def found(numbers):
            system = system_of(numbers)
            return limit_cycle.floquet(system, limit_cycle.find(system, *sizes))

        return found

    yield (
        "cycle and multiplier, 16 harmonics: one by one",
        Call(multiplier((16, 128)), OSCILLATING, one_by_one),
    )
    yield "cycle and multiplier, 32 harmonics", Call(multiplier((32, 512)), OSCILLATING)
    yield (
        "normal form",
        Call(lambda numbers: limit_cycle.hopf_normal_form(system_of(numbers)), OSCILLATING),
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
    for calls in (trajectories(), other_laws(), chunks(), observables(), cycles()):
        for name, call in calls:
            rows[name] = cost(call, config.repetitions)
            print(name, rows[name], flush=True)
    return rows


if __name__ == "__main__":
    _record.on_one_core()
    _record.main(run, Config(), RESULT)
