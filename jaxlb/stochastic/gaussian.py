"""The Gaussian leap: the trapezoidal exact leap with normal numbers in place of counts.

Given the state, the jobs kept and the arrivals of a step have the means and covariances that they
have in `jaxlb.stochastic.leap`, but are normal, so that a path can be differentiated. Means without
feedback are exact, variances too. What is lost is the shape of laws of a few jobs: counts are not
whole, and can be negative where they are few. The error is of order one over the scale.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..model.system import System
from .frozen import Frozen
from .leap import LeapInfo, LeapState, arrivals, seen_by_rule
from .samplers import normal_quantile, root

# A variance that is no more than rounding of the largest is none.
NEGLIGIBLE = 1e-12


def num_draws(system: System) -> int:
    """Uniform numbers that one step of one replica takes."""
    return 2 * system.num_servers * (system.num_phases + 1)


def step(
    uniforms: Float[Array, "draws replicas"],
    state: LeapState,
    scale: Float[Array, ""],
    system: System,
    frozen: Frozen,
) -> tuple[LeapState, LeapInfo]:
    """One step of the length that `frozen` was made for; `num_draws` uniform numbers."""
    normal = jax.lax.optimization_barrier(normal_quantile(uniforms))
    of_kept, of_arrivals = normal.reshape(2, *state.jobs.shape)
    kept = _kept(of_kept, state.jobs, frozen.stay)
    normal = of_arrivals[:, seen_by_rule(system)]

    def early_of(early, late):
        # What is expected of them given all arrivals of the step: their part of the noise.
        spread = root(early + late)
        some = spread > 0
        return early + early * jnp.where(some, normal, 0.0) / jnp.where(some, spread, 1.0)

    new = arrivals(system, scale, state.jobs, kept, frozen, early_of)
    mean = new.early + new.late
    return LeapState(kept + mean + root(mean) * of_arrivals), LeapInfo(new.valid)


def _kept(
    normal: Float[Array, "servers compartments replicas"],
    jobs: Float[Array, "servers compartments replicas"],
    stay: Float[Array, "servers compartments compartments"],
) -> Float[Array, "servers compartments replicas"]:
    """Where the jobs present are at the end: normal with the moments of multinomial counts."""
    compartments = range(jobs.shape[1])
    chance = stay[..., None]
    # Where there are no jobs there is no chance; the mean stays linear.
    present = jnp.maximum(jobs, 0)
    mean = [sum(jobs[:, b] * chance[:, b, c] for b in compartments) for c in compartments]
    least = NEGLIGIBLE * present.sum(axis=1)

    def covariance(c, d):
        """Of the jobs in two compartments at the end: the sum of the multinomials'."""
        both = jnp.zeros_like(least)
        for b in compartments:
            other = jnp.where(c == d, 1.0, 0.0) - chance[:, b, d]
            both = both + present[:, b] * chance[:, b, c] * other
        return both

    # Cholesky's factor of that, column by column.
    factor, noise = {}, [jnp.zeros_like(least) for _ in compartments]
    for d in compartments:
        rest = {
            c: covariance(c, d) - sum(factor[c, k] * factor[d, k] for k in range(d))
            for c in compartments[d:]
        }
        pivot = root(rest[d], least)
        some = pivot > 0
        for c in compartments[d:]:
            factor[c, d] = jnp.where(some, rest[c], 0.0) / jnp.where(some, pivot, 1.0)
            noise[c] += factor[c, d] * normal[:, d]
    return jnp.stack([mean[c] + noise[c] for c in compartments], axis=1)
