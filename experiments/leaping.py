"""How far off are methods by steps? Mean and variance of the imbalance against exact ones.

Four small systems, where counts are few and lambda theta h is up to 3, at seven times. The exact
values are those of the generator cut at 21, 26, 15 and 8 jobs in a phase and 21, 26, 23 and 12 in
service: at most 4e-4 of the mass is lost, by time 10.

Run:     python -m experiments.leaping
Writes:  experiments/results/leaping.json
Cost:    five minutes on one core.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxlb as lb

from . import _record

RESULT = Path(__file__).parent / "results" / "leaping.json"


@dataclass(frozen=True)
class Case:
    """A system with mu = 1, from jobs in service at `start`; exact moments of the imbalance."""

    arrival_rate: float
    delay: float
    stages: int
    sensitivity: float
    scale: float
    start: tuple[int, int]
    mean: tuple[float, ...]
    variance: tuple[float, ...]

    @property
    def system(self) -> lb.System:
        delay = lb.Erlang(self.delay, self.stages)
        return lb.System(self.arrival_rate, 1.0, delay, lb.Logit(self.sensitivity))


TIMES = 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0
CASES = {
    "A": Case(
        *(5.0, 1.0, 1, 1.0, 1.0, (0, 1)),
        mean=(-0.66947098, -0.29248368, 0.19657845, 0.12204837, -0.04404135, 0.00654002, 0.0),
        variance=(0.41280415, 0.97126542, 2.0837349, 4.0897011, 5.3315627, 6.2625068, 6.491044),
    ),
    "B": Case(
        *(2.0, 1.0, 1, 1.0, 4.0, (0, 4)),
        mean=(-2.9355838, -1.8795255, -0.28843307, 0.50608771, 0.12333307, -0.02533867, -0.00014),
        variance=(1.0838776, 2.2056821, 4.1954432, 7.230721, 9.1257013, 10.566172, 10.927577),
    ),
    "C": Case(
        *(3.0, 0.25, 1, 2.0, 2.0, (0, 10)),
        mean=(-6.7783817, -3.2924472, 0.42762599, -0.0540272, 0.00560786, 0.00004789, 0.0),
        variance=(2.7284755, 4.8573652, 4.1319956, 4.4095738, 4.5472036, 4.6156198, 4.6262636),
    ),
    "D": Case(
        *(1.2, 1.0, 2, 2.0, 1.0, (0, 2)),
        mean=(-1.5404323, -1.1155129, -0.35288356, 0.32131902, 0.128908, -0.03544994, -0.00046583),
        variance=(0.36196717, 0.57516153, 0.86601159, 1.3592312, 1.7234057, 1.9252567, 1.9613165),
    ),
}


@dataclass(frozen=True)
class Config:
    """What is compared: the trapezoidal leap in every case, and all methods in case A."""

    times: tuple[float, ...] = TIMES
    cases: dict[str, Case] = field(default_factory=lambda: CASES)
    replicas: int = 1_000_000
    steps: tuple[float, ...] = (0.5, 0.25, 0.125)
    methods_replicas: int = 50_000
    methods_steps: tuple[float, ...] = (0.25, 0.125, 1 / 32)
    methods: tuple[str, ...] = (
        "phase_leap",
        "ring_leap",
        "gaussian_leap",
        "poisson_leap",
        "binomial_leap",
        "langevin",
    )
    seed: int = 1


def simulate(config: Config, case: Case, times: Any, replicas: int, method: str, step: float, keep):
    """An ensemble of one system."""
    key, start = jax.random.key(config.seed), jnp.array(case.start)
    options = {"initial": start, "method": method, "step_size": step, "keep": keep}
    return lb.stochastic.simulate(case.system, key, times, case.scale, replicas, **options)


def relative_errors(config: Config, case: Case, step: float) -> dict[str, list[float]]:
    """Of the leap at each time: mean, in standard deviations, and variance, as a part of it."""
    times, keep = np.array(config.times), ("mean", "variance")
    found = simulate(config, case, times, config.replicas, "phase_leap", step, keep).statistics
    mean = (np.asarray(found.imbalance_mean) - case.mean) / np.sqrt(case.variance)
    variance = np.asarray(found.imbalance_variance) / case.variance - 1
    return {"mean": mean.tolist(), "variance": variance.tolist()}


def errors(config: Config, method: str, step: float) -> dict[str, float]:
    """Of any method in case A at time 2, and the part of paths in which a count is negative."""
    case, at = config.cases["A"], config.times.index(2.0)
    times, keep = np.arange(1, 9) * 2.0 / 8, ("mean", "variance", "jobs")
    found = simulate(config, case, times, config.methods_replicas, method, step, keep)
    mean, variance = case.mean[at], case.variance[at]
    of_mean = found.statistics.imbalance_mean[-1] - mean
    return {
        "mean": float(of_mean / np.sqrt(variance)),
        "variance": float(found.statistics.imbalance_variance[-1] / variance - 1),
        "negative": float((np.asarray(found.jobs) < 0).any(axis=(1, 2, 3)).mean()),
    }


def bounds(rows: dict[str, dict]) -> dict[str, dict]:
    """What was demanded of the leap, what was found, and whether it is met."""
    worst = float(np.abs(rows["A, h = 0.25"]["variance"]).max())
    # From the time on at which both steps are whole: before, they are equal.
    long, short = (np.array(rows[f"B, h = {step}"]["variance"])[2:] for step in (0.5, 0.25))
    ratio = float(np.sqrt(np.mean(long**2) / np.mean(short**2)))
    negative = max(row["negative"] for name, row in rows.items() if "phase_leap" in name)
    return {
        "A, h = 0.25: variance within 0.01 at all times": {"found": worst, "met": worst <= 0.01},
        "B: error of the variance 3 times less with half the step": {
            "found": ratio,
            "met": ratio >= 3,
        },
        "no negative count": {"found": negative, "met": negative == 0},
    }


def run(config: Config) -> dict:
    """Errors of the leap in each case and step at all times, then of each method and step."""
    replicas = {"of cases": config.replicas, "of methods": config.methods_replicas}
    rows: dict[str, dict] = {
        "standard error of the variance": {
            name: float(np.sqrt(2 / count)) for name, count in replicas.items()
        }
    }
    for name, case in config.cases.items():
        for step in config.steps:
            rows[f"{name}, h = {step:g}"] = relative_errors(config, case, step)
    for method in config.methods:
        for step in config.methods_steps:
            rows[f"{method}, h = {step:g}"] = errors(config, method, step)
    rows["bounds"] = bounds(rows)
    return rows


if __name__ == "__main__":
    _record.on_one_core()
    _record.main(run, Config(), RESULT)
