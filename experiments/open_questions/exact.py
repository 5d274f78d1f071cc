"""Predictions tried on exact paths: what counting jobs in transit buys, and where linear noise
misleads."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr

import jaxlb as lb
from jaxlb import design
from jaxlb.paper.claims import Claim

from .case import Config, of_gain, paper

# Least variance in a box of weights, at gain 100, with 5 stages: stable only conditionally.
TRAP = 0.0, 0.3049880790866727, 0.4352132846714637, 0.7318272924825266, 1.0


class Trial(NamedTuple):
    """A system and what came out; `recommended`: whether it is a design to be used."""

    name: str
    system: lb.System
    recommended: bool


def trials(config: Config) -> list[Trial]:
    """Rules of the paper's system, in the order of the report."""
    rows = []
    for stages in (2, 10):
        still = paper(stages, of_gain(15.0))
        hopf = 15 * float(lb.stability.critical_sensitivity(still))
        least = design.tune(
            paper(stages, of_gain(0.3)),
            design.linear_noise_variance,
            {"routing.sensitivity": (0.0, hopf / 15)},
        )
        rows += [
            Trial(f"L={stages}, the paper's theta", still, False),
            Trial(f"L={stages}, all jobs counted, the paper's theta",
                  still.with_routing(design.uniform(still, 1.0)), True),
            Trial(f"L={stages}, theta of least variance", least.system, True),
            Trial(f"L={stages}, best weights", still.with_routing(
                design.lqr(still, config.effort, config.scale)), True),
        ]  # fmt: skip
        rows += [
            Trial(f"L={stages}, {part:g} of the Hopf gain", paper(stages, of_gain(part * hopf)),
                  False)
            for part in (0.8, 0.95, 1.0)
        ]  # fmt: skip
    trap = lb.WeightedLogit(100 / 15, jnp.array(TRAP))
    return [*rows, Trial("L=5, least variance in a box", paper(5, trap), False)]


def found(config: Config, trials: list[Trial]) -> dict[str, design.Confirmation]:
    """Each on exact paths, with its own key."""
    keys = jr.split(jr.key(config.seed), len(trials))
    rows = {}
    for key, trial in zip(keys, trials, strict=True):
        rows[trial.name] = design.confirm(
            trial.system, key, config.scale, replicas=config.paths, duration=config.duration
        )
        # Programs of each system alone: of all they fill gigabytes.
        jax.clear_caches()
    return rows


def statements(
    config: Config, trials: list[Trial], rows: dict[str, design.Confirmation]
) -> list[Claim]:
    """Variances are over 2 lambda scale / mu, that of random routing."""
    random = 2 * 15.0 * config.scale
    claims = []
    for stages, factor in ((2, 45), (10, 580)):
        now = rows[f"L={stages}, the paper's theta"]
        counted = rows[f"L={stages}, all jobs counted, the paper's theta"]
        ratio = now.variance / counted.variance
        error = (
            ratio
            * (
                (now.standard_error / now.variance) ** 2
                + (counted.standard_error / counted.variance) ** 2
            )
            ** 0.5
        )
        claims.append(
            Claim(
                "1 in transit",
                f"Counting all jobs in transit at the paper's own theta cuts the variance about "
                f"{factor} times with {stages} stages, on exact paths.",
                f"{ratio:.1f} ± {error:.1f} times ({now.variance / random:.4g} to "
                f"{counted.variance / random:.4g})",
                f"{factor} by another program",
                abs(ratio - factor) < 3 * error + 0.02 * factor,
                {"ratio": ratio, "standard_error": error},
            )
        )
    return claims + [_of_trial(trial, rows[trial.name], random) for trial in trials]


def _of_trial(trial: Trial, row: design.Confirmation, random: float) -> Claim:
    linear = float(design.linear_noise_variance(trial.system))
    numbers: dict[str, Any] = {
        "exact": row.variance / random,
        "standard_error": row.standard_error / random,
        "predicted": row.predicted / random,
        "linear_noise": linear / 30,
        "z": row.z,
    }
    flagged = "" if row.trusted else " (flagged: not to be trusted)"
    if trial.recommended:
        statement = f"{trial.name}: the predicted variance is that of exact paths."
        holds = row.confirmed or not row.trusted
    else:
        statement = f"{trial.name}: predicted within a tenth, or flagged."
        holds = not row.trusted or abs(row.predicted / row.variance - 1) < 0.1
    return Claim(
        "exact paths",
        statement,
        f"{row.variance / random:.4g} ± {row.standard_error / random:.2g}, z = {row.z:.2f}",
        f"{row.predicted / random:.4g}{flagged}; linear noise {linear / 30:.4g}",
        holds,
        numbers,
    )
