"""Worst cases: the abscissa under any small change of A_L, and under any mean delay of a range."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _checks
from ..model import imbalance
from ..model.delays import AbstractDelay, Deterministic, Erlang, MixedErlang, PhaseType
from ..model.system import System, require_one
from . import axis
from .dense import MAX_DENSE_MODES
from .domain import flagged, is_valid
from .spectrum import spectral_abscissa

# Crossings of a vertical line looked at in a round; from all but strange matrices there are two.
CROSSINGS = 16
# Rounds converge quadratically; eight were the most of 950 random systems, two the median.
MAX_ROUNDS = 30
# Mean delays looked at.
MEANS = 64


def pseudospectral_abscissa(system: System, radius: Any) -> Float[Array, ""]:
    """Largest real part of any eigenvalue of A_L + E over matrices E with norm at most `radius`.

    The norm is the spectral one. Negative: balance stays stable whatever small unmodelled coupling
    of that size there is, also complex.

    **Arguments:** `radius`: epsilon, 1/s, > 0.

    **Returns:** 1/s; differentiable once in `radius` and in the system, through singular vectors,
    where the rightmost point is unique up to conjugation.

    **Raises:** `ValueError` on a bad radius, and for a delay without phases.

    **Accuracy:** over random rates in 0.1 to 10, gains in 1e-2 to 1e3 and radii in 1e-4 to 10, the
    least singular value at the point found, and on the whole line through it, is the radius within
    2e-14 of the norm of A_L in float64 and 1.5e-6 in float32, up to 40 stages.

    **Cost:** O(L^3), on the host: two rounds, in the median, of two dense eigenvalue problems of
    twice the size and 17 singular value decompositions.

    **Source:** Burke, Lewis and Overton (2003), IMA J. Numerical Analysis 23(3): criss-cross.
    """
    require_one(system)
    radius = _checks.positive("radius", radius, "1/s")
    phases = system.phase_delay("a pseudospectrum").num_phases
    if phases >= MAX_DENSE_MODES:
        raise ValueError(
            f"`delay` must have fewer than {MAX_DENSE_MODES} phases for dense eigenvalues, "
            f"got {phases}."
        )
    system.require_servers_alike()
    valid = is_valid(system) & _checks.is_positive(radius)
    return flagged(valid, _pseudospectral_abscissa, system, radius)


def _pseudospectral_abscissa(system: System, radius: Array) -> Float[Array, ""]:
    matrix = imbalance.matrix(system)
    return _rightmost_point(matrix, radius.astype(matrix.dtype))


@jax.custom_jvp
@jax.jit
def _rightmost_point(matrix: Float[Array, "n n"], radius: Array) -> Float[Array, ""]:
    return _criss_cross(matrix, radius)[0]


@_rightmost_point.defjvp
def _rightmost_point_jvp(primals, tangents):
    (matrix, radius), (d_matrix, d_radius) = primals, tangents
    x, y = _criss_cross(matrix, radius)
    left, _, right = _least_singular(matrix, x, y)
    # At the rightmost point the normal of the level set is horizontal.
    slope = -jnp.vdot(left, right).real
    change = jnp.vdot(left, d_matrix @ right).real
    return x, (d_radius - change) / jnp.where(slope == 0, 1.0, slope)


def _least_singular(matrix: Array, x: Array, y: Array) -> tuple:
    """Left vector, value and right vector of the least singular value of A - (x + i y) I."""
    size = matrix.shape[0]
    shifted = matrix - jax.lax.complex(x, y) * jnp.eye(size, dtype=matrix.dtype)
    left, values, right = jnp.linalg.svd(shifted)
    return left[:, -1], values[-1], right[-1].conj()


def _criss_cross(matrix: Array, radius: Array) -> tuple[Array, Array]:
    """The rightmost point of the pseudospectrum, on the upper half plane."""
    size = matrix.shape[0]
    eye, eps = jnp.eye(size, dtype=matrix.dtype), jnp.finfo(matrix.dtype).eps
    scale = jnp.max(jnp.abs(matrix)) * size + radius

    def rightmost_on(y):
        """Rightmost point at height y: a real eigenvalue of a Hamiltonian matrix."""
        turned = 1j * y * eye
        block = jnp.block([[matrix.T + turned, -radius * eye], [-radius * eye, matrix - turned]])
        roots = jnp.linalg.eigvals(block)
        level = jnp.abs(roots.imag) <= eps**0.5 * scale
        return jnp.max(jnp.where(level, roots.real, -jnp.inf))

    def deepest_at(x):
        """Height at which the line through x is deepest inside, and whether it is inside."""
        block = jnp.block([[x * eye - matrix.T, radius * eye], [-radius * eye, matrix - x * eye]])
        roots = jnp.linalg.eigvals(block)
        off = jnp.where(roots.imag >= 0, jnp.abs(roots.real), jnp.inf)
        gap, chosen = jax.lax.top_k(-off, min(CROSSINGS, 2 * size))
        heights = jnp.where(-gap <= eps**0.5 * scale, roots.imag[chosen], 0.0)
        heights = jnp.sort(jnp.append(heights, 0.0))
        middles = jnp.append((heights[1:] + heights[:-1]) / 2, 0.0)
        depths = jax.lax.map(lambda y: _least_singular(matrix, x, y)[1], middles)
        best = jnp.argmin(depths)
        return middles[best], depths[best] < radius

    def go_on(state):
        rounds, before, x, _ = state
        return (rounds < MAX_ROUNDS) & (x > before)

    def round_(state):
        rounds, _, x, y = state
        middle, inside = deepest_at(x)
        there = rightmost_on(middle)
        further = inside & (there > x + 4 * eps * scale)
        return rounds + 1, x, jnp.where(further, there, x), jnp.where(further, middle, y)

    roots = jnp.linalg.eigvals(matrix)
    first = jnp.argmax(roots.real)
    y = jnp.abs(roots[first].imag)
    x = rightmost_on(y)
    _, _, x, y = jax.lax.while_loop(go_on, round_, (0, -jnp.inf * jnp.ones_like(x), x, y))
    for _ in range(2):
        left, value, right = _least_singular(matrix, x, y)
        slope = -jnp.vdot(left, right).real
        x = x - jnp.where(slope > 0, (value - radius) / jnp.where(slope > 0, slope, 1.0), 0.0)
    return x, y


class WorstCase(NamedTuple):
    """Largest abscissa, 1/s, and the mean delay, s, where it is."""

    abscissa: Float[Array, ""]
    mean: Float[Array, ""]


def worst_abscissa(system: System, shortest: Any, longest: Any) -> WorstCase:
    """Largest `spectral_abscissa` over mean delays in a range, the law keeping its shape.

    The worst mean is not always the longest: see the windows of instability in
    `jaxlb.stability.boundary`. The mean of `system` itself does not matter.

    **Arguments:** `shortest`, `longest`: s, 0 < shortest < longest.

    **Returns:** a `WorstCase`, differentiable in all arguments. Where two means are equally bad the
    derivative is that of one of them.

    **Raises:** `ValueError` on bad bounds, and for a delay whose mean cannot be changed.

    **Accuracy:** that of `spectral_abscissa`; the mean the root of the precision. The abscissa is
    looked at for 64 means of equal ratio, and refined next to the largest.

    **Cost:** 211 abscissas.
    """
    require_one(system)
    shortest = _checks.positive("shortest", shortest, "s")
    longest = _checks.positive("longest", longest, "s")
    if _checks.is_concrete(shortest, longest) and not shortest < longest:
        raise ValueError(f"`shortest` must be below `longest`, got {shortest} and {longest} s.")
    if not isinstance(system.delay, Erlang | Deterministic | MixedErlang | PhaseType):
        raise ValueError(f"`delay` must be one whose mean can be changed, got {system.delay!r}.")
    system.require_servers_alike()
    # The system's own precision, whatever that of the bounds.
    shortest, longest = (value.astype(system.arrival_rate.dtype) for value in (shortest, longest))
    valid = is_valid(system) & _checks.is_positive(shortest) & _checks.is_positive(longest)
    return flagged(valid & (shortest < longest), _worst_abscissa, system, shortest, longest)


@eqx.filter_jit
def _worst_abscissa(system: System, shortest: Array, longest: Array) -> WorstCase:
    def best(log_mean):
        """Minus the abscissa."""
        delay = with_mean(system.delay, jnp.exp(log_mean))
        return -spectral_abscissa(eqx.tree_at(lambda s: s.delay, system, delay))

    ends = jnp.log(jnp.stack([shortest, longest]))
    points = jax.lax.stop_gradient(jnp.linspace(ends[0], ends[1], MEANS))
    values = jax.lax.stop_gradient(jax.vmap(best)(points))
    at = jnp.argmin(values)
    inside = axis.lowest(
        best, points[jnp.maximum(at - 1, 0)], points[jnp.minimum(at + 1, MEANS - 1)]
    )
    means = jnp.append(ends, inside)
    worst = -jax.vmap(best)(means.at[2].set(jax.lax.stop_gradient(inside)))
    chosen = jnp.argmax(worst)
    return WorstCase(worst[chosen], jnp.exp(means[chosen]))


def with_mean(delay: AbstractDelay, mean: Array) -> AbstractDelay:
    """The delay of that mean, its shape kept."""
    if isinstance(delay, PhaseType):
        return eqx.tree_at(lambda d: d.generator, delay, delay.generator * (delay.mean / mean))
    return eqx.tree_at(lambda d: d.mean, delay, mean)
