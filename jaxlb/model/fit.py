"""The usual delay with given moments."""

import math
from typing import Any

import jax.numpy as jnp

from .. import _checks
from .delays import AbstractDelay, Deterministic, Erlang, MixedErlang, PhaseType

# A fit with more phases than this would be a deterministic delay in all but name.
MAX_FITTED_STAGES = 1_000_000
# Beyond this one job in 10^12 carries the mean.
MAX_FITTED_CV = 1e6


def from_mean_cv(mean: Any, cv: float) -> AbstractDelay:
    """The usual delay with a given mean and coefficient of variation.

    A mixture of two Erlangs of one rate below cv = 1 (one Erlang where cv^2 = 1/L), the exponential
    at 1, a two-phase hyperexponential with balanced means above 1, and `Deterministic` at 0.

    **Arguments:** `mean`: s, > 0, may be traced. `cv`: standard deviation over mean, 0 or from
    0.001 to 10^6; it fixes the number of phases, so it must be concrete.

    **Raises:** `ValueError` on a bad value.

    **Source:** Tijms (1994), Stochastic Models: An Algorithmic Approach.
    """
    if not _checks.is_concrete(cv):
        raise ValueError(f"`cv` fixes an array shape, so it must be concrete, got {cv}.")
    _checks.not_negative("cv", cv)
    if cv == 0:
        return Deterministic(mean)
    if cv > MAX_FITTED_CV or cv**2 * MAX_FITTED_STAGES < 1 - 1e-9:
        raise ValueError(f"`cv` must be 0 or from 0.001 to {MAX_FITTED_CV:g}, got {cv}.")
    mean, square = _checks.positive("mean", mean, "s"), float(cv) ** 2
    if square > 1:
        lean = math.sqrt((square - 1) / (square + 1))
        # (1 - lean) / 2, which would cancel.
        rare = 1 / ((square + 1) * (1 + lean))
        initial = jnp.array([1 - rare, rare], mean.dtype)
        return PhaseType(initial, jnp.diag(-2 * initial / mean))
    # The slack keeps a cv such as 1 / sqrt(3) on the pure Erlang that it names.
    stages = math.ceil(1 / square - 1e-9)
    if abs(stages * square - 1) <= 1e-9:
        return Erlang(mean, stages)
    fewer = (stages * square - math.sqrt(stages * (1 + square - stages * square))) / (1 + square)
    weights = [0.0] * (stages - 2) + [fewer, 1 - fewer]
    return MixedErlang(mean, jnp.array(weights, mean.dtype))
