"""What do calls of the design layer cost, and rules with a memory on exact paths?

The paper's rates (arrival rate 15, service rate 1, mean delay 1) with 2, 10 and 50 stages, at scale
100. CPU seconds on one core, the least of several with other numbers each time, compilation apart.
Docstrings quote them.

Run:     python -m experiments.benchmarks.design_costs
Writes:  experiments/benchmarks/results/design_costs.json
Cost:    nine minutes on one core.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.random as jr
import numpy as np

import jaxlb as lb
from jaxlb import design

from .. import _record

RESULT = Path(__file__).parent / "results" / "design_costs.json"
SCALE = 100.0


@dataclass(frozen=True)
class Config:
    """How often each call is timed, and the length of an exact path, s."""

    repetitions: int = 5
    duration: float = 20.0


# What is timed: a function of a number near one, which changes what is computed.
Call = Callable[[float], Any]


def plain(stages: int, part: float = 1.0) -> lb.System:
    """Well below the Hopf point, at a sensitivity times `part`."""
    return lb.System(15.0, 1.0, lb.Erlang(1.0, stages), lb.Logit(0.04 * part))


def designed(stages: int, part: float = 1.0) -> lb.System:
    """With the best weights at a tenth of a switch's effort, times `part`."""
    system = plain(stages)
    return system.with_routing(design.lqr(system, 0.1 * part, SCALE))


def calls() -> Iterator[tuple[str, Call]]:
    """Of each number of stages."""
    for stages in (2, 10, 50):
        place, whole = f"L = {stages}", designed(stages)
        yield f"{place}: lqr", lambda part, stages=stages: designed(stages, part)
        yield f"{place}: kalman", lambda part, system=whole: design.kalman(_scaled(system, part))
        yield f"{place}: by_age", lambda part, system=whole: design.by_age(_scaled(system, part))
        for name, rule in (
            ("filter", design.kalman(whole)),
            ("ages", design.by_age(whole)),
            ("late view", lb.LateLogit(0.04, 0.1)),
        ):
            system = whole.with_routing(rule)
            yield (
                f"{place}: observed_noise, {name}",
                lambda part, system=system: design.observed_noise(system, SCALE * part),
            )
        yield (
            f"{place}: observations",
            lambda part, system=whole: design.observations(system, SCALE * part),
        )
        yield (
            f"{place}: stable_for_every_sensitivity",
            lambda part, system=whole: design.stable_for_every_sensitivity(_scaled(system, part)),
        )
        yield (
            f"{place}: settling_bound",
            lambda part, stages=stages: design.settling_bound(plain(stages), tolerance=0.05 * part),
        )
        yield (
            f"{place}: criteria",
            lambda part, stages=stages: design.criteria(plain(stages, part), SCALE),
        )
        yield f"{place}: advise", lambda part, stages=stages: design.advise(plain(stages, part))
        jax.clear_caches()


def fronts() -> Iterator[tuple[str, Call]]:
    """Of two stages: one number; all weights, against decay rate and settling time."""
    half = plain(2).with_routing(design.uniform(plain(2), 0.5))
    free = {"routing.sensitivity": (0.0, None), "routing.weights": (None, None)}
    variance = design.linear_noise_variance
    limit = 0.1 * float(design.relay_effort(half, SCALE))
    effort = partial(design.control_effort, scale=SCALE)
    one = {"routing.sensitivity": (0.0, 0.5)}
    yield (
        "front of one number",
        lambda part: design.pareto(plain(2, part), design.decay_rate, variance, one),
    )
    for first, points in ((design.decay_rate, 8), (design.settling_time, 6)):
        yield (
            f"front of {points} designs: {first.__name__}",
            lambda part, first=first, points=points: design.pareto(
                half, first, variance, free, {effort: (None, limit * part)}, points=points
            ),
        )


def _scaled(system: lb.System, part: float) -> lb.System:
    """With another sensitivity."""
    rule: Any = system.routing
    return system.with_routing(lb.WeightedLogit(rule.sensitivity * part, rule.weights))


def cost(call: Call, repetitions: int) -> dict[str, float]:
    """CPU milliseconds, and seconds of the first call."""
    begin = time.process_time()
    jax.block_until_ready(call(1.0))
    first, spent = time.process_time() - begin, []
    for number in range(repetitions):
        begin = time.process_time()
        jax.block_until_ready(call(0.99 - 0.01 * number))
        spent.append(time.process_time() - begin)
    return {"milliseconds": 1e3 * min(spent), "first_call_seconds": first}


def on_paths(config: Config) -> Iterator[tuple[str, dict[str, float]]]:
    """Microseconds for each job of one exact path."""
    times = np.linspace(0, config.duration, 3)
    jobs = 2 * 15 * SCALE * config.duration
    for stages in (2, 10, 50):
        system = designed(stages)
        rules: dict[str, Any] = {"filter": design.kalman(system)}
        if stages == 10:
            rules |= {"ages": design.by_age(system), "late view": lb.LateLogit(0.04, 0.1)}
        for name, rule in rules.items():

            def path(part, rule=rule, system=system):
                key = jr.key(round(1000 * part))
                whole = system.with_routing(rule)
                return lb.stochastic.simulate(whole, key, times, SCALE).jobs

            row = cost(path, 2)
            yield (
                f"L = {stages}: a job, {name}",
                {
                    "microseconds": 1e3 * row["milliseconds"] / jobs,
                    "first_call_seconds": row["first_call_seconds"],
                },
            )


def run(config: Config) -> dict:
    """The cost of every call."""
    rows = {}
    for name, call in calls():
        few = 1 if name.endswith(("advise", "observations")) else config.repetitions
        rows[name] = cost(call, few)
        print(name, rows[name], flush=True)
    for name, call in fronts():
        rows[name] = cost(call, 1)
        print(name, rows[name], flush=True)
    return rows | dict(on_paths(config))


if __name__ == "__main__":
    _record.on_one_core()
    _record.main(run, Config(), RESULT)
