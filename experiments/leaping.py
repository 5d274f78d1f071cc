"""How far off are methods by steps? Variance of the imbalance against the exact one.

One stage, lambda 5, mu 1, D 1, theta 1, scale 1, at time 2 from (0, 1): counts are few, and lambda
theta h is 1.25 for the longest step. The exact variance is that of the generator, cut at 21 jobs in
each of four compartments (2e-6 of the mass is lost).

Run:     python -m experiments.leaping
Writes:  experiments/results/leaping.json
Cost:    half a minute on one core.
"""

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxlb as lb

from . import _record

RESULT = Path(__file__).parent / "results" / "leaping.json"
MEAN, VARIANCE = 0.12204836935886293, 4.089701087889993


@dataclass(frozen=True)
class Config:
    """What is compared."""

    replicas: int = 50_000
    seed: int = 1
    time: float = 2.0
    steps: tuple[float, ...] = (0.25, 0.125, 1 / 32)
    methods: tuple[str, ...] = (
        "phase_leap",
        "ring_leap",
        "gaussian_leap",
        "poisson_leap",
        "binomial_leap",
        "langevin",
    )


def run(config: Config) -> dict:
    """For each method and step the error of the mean, in standard deviations, and of the variance,
    as a part of it, and the part of paths in which a count is negative."""
    system = lb.System(5.0, 1.0, lb.Erlang(1.0, 1), lb.Logit(1.0))
    rows = {"standard error": {"of variance": float(np.sqrt(2 / config.replicas))}}
    for method in config.methods:
        for step in config.steps:
            found = lb.stochastic.simulate(
                system,
                jax.random.key(config.seed),
                np.arange(1, 9) * config.time / 8,
                1.0,
                config.replicas,
                initial=jnp.array([0, 1]),
                method=method,
                step_size=step,
                keep=("mean", "variance", "jobs"),
            )
            statistics = found.statistics
            negative = (np.asarray(found.jobs) < 0).any(axis=(1, 2, 3)).mean()
            rows[f"{method}, h = {step:g}"] = {
                "mean": float((statistics.imbalance_mean[-1] - MEAN) / np.sqrt(VARIANCE)),
                "variance": float(statistics.imbalance_variance[-1] / VARIANCE - 1),
                "negative": float(negative),
            }
    return rows


if __name__ == "__main__":
    _record.on_one_core()
    _record.main(run, Config(), RESULT)
