"""Does the search reach the closed-form optimum from wherever it starts?

Ten random sensitivities, from a thousandth to a thousand times the best one, for 2, 5, 20 and
infinitely many stages.

Run:     python -m experiments.search_starts
Writes:  experiments/results/search_starts.json; exit code 1 if an error exceeds its bound.
Cost:    a minute on one core.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import jaxlb as lb

from . import _record

RESULT = Path(__file__).parent / "results" / "search_starts.json"


@dataclass(frozen=True)
class Config:
    """The systems, the starts, and the largest relative error that is accepted."""

    seed: int = 7
    starts: int = 10
    decades: float = 3.0
    stages: tuple[float, ...] = (2, 5, 20, np.inf)
    arrival_rate: float = 15.0
    service_rate: float = 1.0
    mean: float = 0.7
    bound: float = 1e-6


class Family(eqx.Module):
    """From a sensitivity to a system."""

    delay: lb.AbstractDelay
    arrival_rate: float
    service_rate: float

    def __call__(self, sensitivity: Float[Array, ""]) -> lb.System:
        return lb.System(self.arrival_rate, self.service_rate, self.delay, lb.Logit(sensitivity))


def closed_form(config: Config, stages: float) -> tuple[float, float]:
    """theta* and its abscissa by hand: kappa* / (lambda D) and -L (mu + 1 / D) / (L + 1)."""
    m = config.service_rate * config.mean
    many = np.isinf(stages)
    kappa = np.exp(-1 - m) if many else ((stages - m) / (stages + 1)) ** (stages + 1)
    share = 1.0 if many else stages / (stages + 1)
    return kappa / (config.arrival_rate * config.mean), -share * (1 + m) / config.mean


def run(config: Config) -> dict:
    """Largest relative errors over the starts, and how many ended on a double root."""
    rng = np.random.default_rng(config.seed)
    rows = {}
    for stages in config.stages:
        many = np.isinf(stages)
        delay = lb.Deterministic(config.mean) if many else lb.Erlang(config.mean, int(stages))
        family = Family(delay, config.arrival_rate, config.service_rate)
        best, abscissa = closed_form(config, stages)
        errors, doubles = [], 0
        for start in best * 10 ** rng.uniform(-config.decades, config.decades, config.starts):
            found = lb.stability.search(family, jnp.asarray(start), lower=0.0, upper=1e3)
            doubles += found.double_root
            errors.append((found.parameters / best - 1, found.abscissa / abscissa - 1))
        worst = np.abs(np.array(errors, float)).max(axis=0)
        rows[f"L = {stages:g}"] = {
            "sensitivity_error": worst[0],
            "abscissa_error": worst[1],
            "double_roots": doubles,
        }
    return rows


if __name__ == "__main__":
    config = Config()
    rows = _record.main(run, config, RESULT)
    worst = max(max(row["sensitivity_error"], row["abscissa_error"]) for row in rows.values())
    sys.exit(bool(worst > config.bound))
