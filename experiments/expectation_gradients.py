"""How far off are derivatives of expectations, and what does it cost to have them precisely?

Run:     python -m experiments.expectation_gradients
Needs:   the `test` extra, for SciPy.
Writes:  experiments/results/expectation_gradients.json
Cost:    four minutes on one core.

The expectation is that of the squared imbalance over the squared scale at time 2, from jobs in
service alone. What methods cost is compared by the variance of what one path gives times its CPU
time in microseconds: over the CPU time spent, that is the squared standard error. Every path gives
the derivatives in all four parameters.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import jaxlb as lb
from tests import oracles

from . import _record

RESULT = Path(__file__).parent / "results" / "expectation_gradients.json"

TIME = 2.0

METHODS: dict[str, dict[str, Any]] = {
    "pathwise": {"method": "pathwise", "step_size": 0.125},
    "score": {"method": "score"},
    "coupled": {"method": "coupled"},
}


@dataclass(frozen=True)
class Case:
    """A system of two servers, the jobs in service at time zero, and the derivatives in the order
    of `NAMES`: central differences of the master equation on a truncated state space."""

    arrival_rate: float
    delay: float
    stages: int
    sensitivity: float
    scale: int
    start: tuple[int, int]
    truth: tuple[float, float, float, float] | None = None


NAMES = "arrival_rate", "service_rate", "delay", "sensitivity"
CASES = {
    "A": Case(5.0, 1.0, 1, 1.0, 1, (0, 1), (0.711744, -1.251827, -0.851841, -0.177643)),
    "B": Case(2.0, 1.0, 1, 1.0, 4, (0, 4), (0.188775, -0.184742, -0.092272, -0.052175)),
    "C": Case(3.0, 0.25, 1, 2.0, 2, (0, 10), (0.241018, -0.253119, 1.452199, -0.068194)),
    "D": Case(1.2, 1.0, 2, 2.0, 1, (0, 2), (1.154295, -0.760706, -0.440537, 0.028719)),
}


@dataclass(frozen=True)
class Config:
    """How many paths; steps of differences, and the most jobs in the state space that their bias is
    found on; scales other than that of case A, and how many paths at each."""

    seed: int = 1
    replicas: int = 1_000_000
    methods: tuple[str, ...] = tuple(METHODS)
    relative_steps: tuple[float, ...] = (0.05, 0.1)
    most_jobs: tuple[tuple[str, int], ...] = (("A", 42), ("D", 17))
    scales: tuple[tuple[int, int], ...] = ((10, 50_000), (100, 10_000))


def measured(case: Case, method: str, seed: int, replicas: int) -> dict:
    """Each derivative with its error, how far it is from the truth, and its price."""
    system = lb.System(
        case.arrival_rate,
        1.0,
        lb.Erlang(case.delay, case.stages),
        lb.Logit(case.sensitivity),
    )
    start = jnp.array(case.start)

    def squared_imbalance(jobs):
        return ((jobs[0, -1] - jobs[1, -1]) / case.scale) ** 2

    def gradient(seed):
        return jax.block_until_ready(
            lb.stochastic.expectation_gradient(
                system,
                squared_imbalance,
                jr.key(seed),
                TIME,
                case.scale,
                replicas,
                start,
                **METHODS[method],
            )
        )

    # The first call compiles.
    gradient(0)
    before = time.process_time()
    result = gradient(seed)
    microseconds = (time.process_time() - before) / replicas * 1e6
    found: dict = {"cpu_microseconds_a_path": microseconds}
    slopes, errors = jax.tree.leaves(result.estimate), jax.tree.leaves(result.standard_error)
    for number, name in enumerate(NAMES):
        slope, error = float(slopes[number]), float(errors[number])
        found[name] = {
            "derivative": slope,
            "standard_error": error,
            "variance_times_cpu": error**2 * int(result.valid) * microseconds,
        }
        if case.truth is not None:
            truth = case.truth[number]
            found[name] |= {"z": (slope - truth) / error, "percent_off": 100 * (slope / truth - 1)}
    return found


def bias_of_differences(case: Case, relative_step: float, most_jobs: int) -> dict:
    """Of central differences of the master equation, in per cent of those to 1 %."""

    def expectation(numbers) -> float:
        arrival_rate, service_rate, delay, sensitivity = numbers
        start = np.zeros((2, case.stages + 1), int)
        start[:, -1] = case.start
        states, law, _ = oracles.truncated_law(
            oracles.erlang(delay, case.stages),
            start,
            TIME,
            most_jobs,
            arrival_rate=arrival_rate,
            service_rates=np.full(2, service_rate),
            shares=oracles.logit(sensitivity),
            scale=case.scale,
        )
        return float(law @ (states[:, 0, -1] - states[:, 1, -1]) ** 2)

    def slope(number: int, part: float) -> float:
        numbers = np.array([case.arrival_rate, 1.0, case.delay, case.sensitivity])
        step = part * numbers[number] * np.eye(4)[number]
        return (expectation(numbers + step) - expectation(numbers - step)) / (2 * step[number])

    return {
        name: 100 * (slope(number, relative_step) / slope(number, 0.01) - 1)
        for number, name in enumerate(NAMES)
    }


def run(config: Config) -> dict:
    """By case and method; by scale and method for case A at other scales; bias by case and step."""
    found = {
        f"{name} {method}": measured(case, method, config.seed, config.replicas)
        for name, case in CASES.items()
        for method in config.methods
    }
    for scale, replicas in config.scales:
        case = Case(5.0, 1.0, 1, 1.0, scale, (0, scale))
        for method in config.methods:
            found[f"scale {scale} {method}"] = measured(case, method, config.seed, replicas)
    for name, most_jobs in config.most_jobs:
        for step in config.relative_steps:
            found[f"{name} bias percent of differences to {step}"] = bias_of_differences(
                CASES[name], step, most_jobs
            )
    return found


if __name__ == "__main__":
    _record.on_one_core()
    _record.main(run, Config(), RESULT)
