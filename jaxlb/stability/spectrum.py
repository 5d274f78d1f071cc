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
from jaxtyping import Array, Complex, Float, Inexact

from .. import _checks
from ..model import imbalance
from ..model.delays import AbstractPhaseDelay, Deterministic, Erlang
from ..model.routing import Logit
from ..model.system import System
from .erlang import erlang_root

# A dense matrix of this size fills 134 MB and takes minutes.
MAX_DENSE_MODES = 4096


def characteristic_residual(system: System, root: Inexact[Array, ""]) -> Complex[Array, ""]:
    """Left-hand side of equation (17) at complex `root`, 1/s; zero at an eigenvalue of A_L.

    **Accuracy:** the delay's transform is evaluated through its logarithm, so that a million stages
    cost no digits: within 1e-15 of 40-digit arithmetic, relative to
    |r| + mu + lambda theta |f| (1 + |r D / (1 + r D / L)|).

    **Cost:** O(1) in the number of stages for `Logit`; O(stages) for `WeightedLogit`.
    """
    service, delay = root + system.common_service_rate, system.delay
    if isinstance(system.routing, Logit):
        gain = system.arrival_rate * system.routing.sensitivity
        return service + gain * delay.transform(root)
    gain = imbalance.feedback(system)
    residual = service - gain[0] * delay.transform(root)
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


def rightmost_root(system: System) -> Complex[Array, ""]:
    """Root of `characteristic_residual` with the largest real part; of a pair the upper one; 1/s.

    With `Logit` and an `Erlang` or `Deterministic` delay it is `erlang_root`, at a fixed cost; else
    an eigenvalue of A_L. Differentiable, once and more, by the implicit function theorem. Where two
    roots meet the derivative does not exist: see `erlang_root`; from eigenvalues it is zero there.

    **Raises:** `ValueError` for a `Deterministic` delay with another rule.

    **Accuracy:** by `erlang_root` as stated there. By eigenvalues, over random rates in 0.1 to 10
    and sensitivities in 1e-3 to 1e3, relative, in float64: 1e-13 up to 20 stages, 1e-11 at 100;
    near a double root the square root of the precision.

    **Cost:** by `erlang_root` fixed; by eigenvalues O(L^3), on the host.
    """
    _checks.kind("system", system, System)
    # Before tracing hides the numbers.
    system.require_servers_alike()
    return _rightmost_root(system)


@eqx.filter_jit
def _rightmost_root(system: System) -> Complex[Array, ""]:
    delay, routing = system.delay, system.routing
    if isinstance(routing, Logit) and isinstance(delay, Erlang | Deterministic):
        if system.num_servers < 2:
            raise ValueError(f"`num_servers` must be at least 2 here, got {system.num_servers}.")
        stages = delay.stages if isinstance(delay, Erlang) else jnp.inf
        return erlang_root(
            system.arrival_rate,
            system.common_service_rate,
            delay.mean,
            stages,
            routing.sensitivity,
        ).root
    return _dense_root(system)


@eqx.filter_custom_jvp
def _dense_root(system: System) -> Complex[Array, ""]:
    roots = eigenvalues(system)
    root = roots[jnp.argmax(roots.real)]
    return jax.lax.complex(root.real, jnp.abs(root.imag))


@_dense_root.def_jvp
def _dense_root_jvp(primals, tangents):
    (system,), (tangent,) = primals, tangents
    root = _dense_root(system)
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
