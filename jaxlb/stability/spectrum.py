"""Spectrum of the difference mode: which way, and how fast, an imbalance goes.

An imbalance proportional to exp(r t) exists where the characteristic residual

    (r + mu) (1 - g_w . phi(r)) - g_x f(r)

is zero, with f the transform of the delay, phi that of the time in each phase and g = (g_x, g_w)
the feedback (`jaxlb.model.imbalance.feedback`). For the paper's rule g = (-lambda theta, 0) and
this is equation (17). For finite phases the roots are eigenvalues of A_L.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Complex, Float, Inexact

from ..model import imbalance
from ..model.delays import AbstractPhaseDelay, Deterministic
from ..model.system import System

# A dense matrix of this size fills 134 MB and takes minutes.
MAX_DENSE_MODES = 4096


def characteristic_residual(system: System, root: Inexact[Array, ""]) -> Complex[Array, ""]:
    """Left-hand side of equation (17) at complex `root`, 1/s; zero at an eigenvalue of A_L.

    **Accuracy:** the delay's transform is evaluated through its logarithm, so that a million stages
    cost no digits: within 4e-16 of 40-digit arithmetic, relative to
    |r| + mu + lambda theta |f| (1 + |r| D).

    **Cost:** O(1) in the number of stages for `Logit`; O(stages) for `WeightedLogit`.
    """
    gain = imbalance.feedback(system)
    service = root + system.common_service_rate
    residual = service - gain[0] * system.delay.transform(root)
    delay = system.delay
    if isinstance(delay, AbstractPhaseDelay) and delay.num_phases:
        residual = residual - service * (gain[1:] @ delay.phase_transform(root))
    return residual


def eigenvalues(system: System) -> Complex[Array, " modes"]:
    """All eigenvalues of A_L, dense, 1/s, in no order.

    **Accuracy:** LAPACK's; see `rightmost_root` for the first of them. The cluster near -gamma
    that a small gain leaves is far less accurate.

    **Cost:** O(L^3), and on the host even where JAX computes on a GPU.
    """
    if system.num_phases >= MAX_DENSE_MODES:
        raise ValueError(
            f"`delay` must have fewer than {MAX_DENSE_MODES} phases for dense eigenvalues, "
            f"got {system.num_phases}."
        )
    return jnp.linalg.eigvals(imbalance.matrix(system))


@eqx.filter_jit
def rightmost_root(system: System) -> Complex[Array, ""]:
    """Eigenvalue of A_L with the largest real part; of a pair, the upper one; 1/s.

    With a `Deterministic` delay the rightmost root of r + mu + lambda theta exp(-r D), a branch of
    Lambert's W function. Differentiable, once and more, by the implicit function theorem. Where two
    roots meet the derivative does not exist, and zero is returned for it.

    **Raises:** `ValueError` for a `Deterministic` delay with a rule that is not `Logit`-like.

    **Accuracy:** over random rates in 0.1 to 10 and sensitivities in 1e-3 to 1e3, relative to the
    root nearest in 40-digit arithmetic, in float64: 1e-13 up to 20 stages, 3e-13 at 50, 1e-11 at
    100 (`experiments/accuracy.py`); `Deterministic` 5e-15. In float32 99 % within 1e-5 at 10
    stages and 2e-3 at 100. Near a double root the square root of the precision.

    **Cost:** O(L^3), dense.
    """
    return _rightmost_root(system)


@eqx.filter_custom_jvp
def _rightmost_root(system: System) -> Complex[Array, ""]:
    if isinstance(system.delay, Deterministic):
        return _deterministic_root(system)
    roots = eigenvalues(system)
    root = roots[jnp.argmax(roots.real)]
    return jax.lax.complex(root.real, jnp.abs(root.imag))


@_rightmost_root.def_jvp
def _rightmost_root_jvp(primals, tangents):
    (system,), (tangent,) = primals, tangents
    root = _rightmost_root(system)
    _, slope = jax.jvp(
        lambda r: characteristic_residual(system, r), (root,), (jnp.ones_like(root),)
    )
    # A double root is found to the square root of the precision, and so is its slope, zero.
    simple = jnp.isfinite(slope) & (jnp.abs(slope) > 100 * jnp.finfo(slope.dtype).eps ** 0.5)
    # Masked before the derivative, not after: zero times infinity is NaN in the transpose.
    at = jnp.where(simple, root, 1.0)
    _, change = eqx.filter_jvp(lambda s: characteristic_residual(s, at), (system,), (tangent,))
    return root, jnp.where(simple, -change / jnp.where(simple, slope, 1.0), 0.0)


def spectral_abscissa(system: System) -> Float[Array, ""]:
    """Largest real part among the eigenvalues of the difference mode, 1/s.

    Negative: balance is locally stable. Zero: on the Hopf boundary. Positive: an imbalance grows.
    Differentiable; see `rightmost_root` for accuracy, cost and errors.
    """
    return rightmost_root(system).real


def _deterministic_root(system: System) -> Complex[Array, ""]:
    """Rightmost root of r + mu = g exp(-r D): r D = -mu D + W(g D exp(mu D)), principal branch."""
    gain, delay = imbalance.feedback(system)[0], system.delay.mean
    turned = system.common_service_rate * delay
    tiny = jnp.finfo(gain.dtype).tiny
    log_size = jnp.log(jnp.maximum(jnp.abs(gain) * delay, tiny)) + turned
    root = _lambert_w(log_size, gain < 0)
    return (jnp.where(gain == 0, 0.0, root) - turned) / delay


def _lambert_w(log_size: Float[Array, ""], negative: Bool[Array, ""]) -> Complex[Array, ""]:
    """W_0 of the real number of that sign and logarithm, with non-negative imaginary part.

    Newton's method on w + log w = log of the argument, which overflows for no argument.
    """
    target = jax.lax.complex(log_size, jnp.where(negative, jnp.pi, 0.0).astype(log_size.dtype))
    argument = jnp.exp(jnp.minimum(log_size, 1.0)) * jnp.where(negative, -1, 1)
    # About the branch point -1/e, where Newton's method alone would be slow.
    p = jnp.sqrt(jax.lax.complex(2 * jnp.e * argument + 2, jnp.zeros_like(argument)))
    near = -1 + p - p**2 / 3 + 11 * p**3 / 72
    small = argument * (1 - argument + 1.5 * argument**2)
    start = jnp.where(
        jnp.abs(argument) < 0.15, small, jnp.where(jnp.abs(p) < 1.2, near, target - jnp.log(target))
    )

    def newton(_, w):
        change = (w + jnp.log(w) - target) * w / (1 + w)
        # At the branch point itself 1 + w is zero and the start is exact.
        return jnp.where(w == -1, w, w - jnp.where(w == -1, 0.0, change))

    return jax.lax.fori_loop(0, 8, newton, start)
