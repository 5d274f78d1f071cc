"""Inside the windows of a march: jobs in service and in each phase at any time."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from . import chain
from .jumps import INTENSITY, MOST, Jumps
from .march import Record
from .window import Model

# Numbers at once in the integrals over the stages: more would not stay in a cache.
AT_ONCE = 4096
# Up to here a product with a matrix made for it is faster than one by Fourier transforms.
SHORT = 8


def queue(record: Record, fraction: Float[Array, " times"]) -> Float[Array, "times modes"]:
    """Jobs in service, by the windows' polynomials; exact where a window begins."""
    matrix = jnp.asarray(chain.coefficients(), fraction.dtype)
    series = record.window.values @ matrix
    moved = _polynomial(series, fraction[:, None]) - _polynomial(series, 0 * fraction[:, None])
    return record.window.start.queue + moved


def _polynomial(series: Float[Array, "... degrees"], at: Float[Array, "..."]) -> Array:
    """Chebyshev series of [0, 1] at points, by Clenshaw's recurrence; the shapes broadcast."""
    x = 2 * at - 1
    one, two = 0 * x, 0 * x
    for k in range(series.shape[-1] - 1, 0, -1):
        one, two = series[..., k] + 2 * x * one - two, one
    return series[..., 0] + x * one - two


def stages(
    model: Model,
    record: Record,
    fraction: Float[Array, " times"],
    length: Float[Array, " times"],
) -> Float[Array, "times modes stages"]:
    """Jobs in each stage: those at the window's start that have moved on, and those since."""
    count = record.window.start.stages.shape[-1]
    counted = MOST if model.jumps else count
    intensity = INTENSITY if model.jumps else count
    # Enough points for the law of the time to a stage, the narrowest in the longest window.
    points, weights = np.polynomial.legendre.leggauss(24 + 4 * math.isqrt(counted))
    points, weights = (points + 1) / 2, weights / 2

    @jax.checkpoint
    def at(one):
        made, fraction, passed = one
        series = made.inflow @ jnp.asarray(chain.coefficients(), passed.dtype)
        since = jnp.asarray(points, passed.dtype)
        inflow = _polynomial(series[:, None], fraction * (1 - since))
        law = _poisson(counted, intensity * passed * since)
        old = _moved(model.jumps, _poisson(counted, intensity * passed[None])[0], made.start.stages)
        # Exactly the start where a window begins, with the derivatives of what follows.
        old = old + jax.lax.stop_gradient(jnp.where(passed > 0, 0, made.start.stages - old))
        new = passed * (inflow * jnp.asarray(weights, passed.dtype)) @ law
        return old + (new @ model.jumps.started if model.jumps else new)

    several = max(1, AT_ONCE // (counted * len(points)))
    return jax.lax.map(at, (record.window, fraction, fraction * length), batch_size=several)


def _poisson(count: int, mean: Float[Array, " points"]) -> Float[Array, "points {count}"]:
    """Probabilities of 0, 1, ... where `mean` are expected."""
    number = np.arange(count)
    factorials = np.cumsum(np.log(np.maximum(number, 1)))
    # The tiniest mean has the derivatives of none.
    mean = mean[:, None] + 1e-30
    number, factorials = (jnp.asarray(part, mean.dtype) for part in (number, factorials))
    return jnp.exp(number * jnp.log(mean) - mean - factorials)


def _moved(
    made: Jumps | None, law: Float[Array, " numbers"], jobs: Float[Array, "modes stages"]
) -> Array:
    """Jobs after each has moved on by a random number of stages, or of jumps."""
    if made is not None:
        return jnp.einsum("k,mi,kij->mj", law, jobs, made.moved)
    count = len(law)
    if count <= SHORT:
        ahead = np.arange(count)[:, None] - np.arange(count)
        return jobs @ jnp.where(ahead >= 0, law[np.maximum(ahead, 0)], 0).T
    spectrum = jnp.fft.rfft(law, 2 * count) * jnp.fft.rfft(jobs, 2 * count)
    return jnp.fft.irfft(spectrum, 2 * count)[..., :count]
