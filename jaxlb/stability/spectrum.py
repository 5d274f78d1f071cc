"""Spectrum of the difference mode: which way, and how fast, an imbalance goes.

An imbalance proportional to exp(r t) exists where the characteristic residual

    (r + mu) (1 - g_w . phi(r)) - g_x f(r)

is zero, with f the transform of the delay, phi that of the time in each phase and g = (g_x, g_w)
the feedback (`jaxlb.model.imbalance.feedback`). For the paper's rule g = (-lambda theta, 0) and
this is equation (17). For finite phases the roots are eigenvalues of A_L.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Complex, Float

from ..model import imbalance
from ..model.delays import AbstractPhaseDelay
from ..model.system import System, require_one
from . import domain, laws
from .dense import are_all, dense_root
from .erlang import erlang_root, is_erlang, parameters_of
from .residual import follow, hold


class CertifiedRoot(NamedTuple):
    """Rightmost root, 1/s, its imaginary part >= 0, and whether no other is right of it.

    Where that could not be confirmed `complete` is false and `root` NaN.
    """

    root: Complex[Array, ""]
    complete: Bool[Array, ""]


def rightmost_root(system: System) -> Complex[Array, ""]:
    """Root of `characteristic_residual` with the largest real part; of a pair the upper one; 1/s.

    With `Logit` and an `Erlang` or `Deterministic` delay it is `erlang_root`, at a fixed cost; for
    other delays with phases an eigenvalue of A_L; for a law with a transform alone the root of
    `certified_root`. Differentiable, once and more. Where two roots meet the derivative does not
    exist: see `erlang_root`; of the other ways it is zero there, as it is for a mode of the stages
    that feedback has not split.

    **Accuracy:** by `erlang_root` as stated there. By eigenvalues, over gains of 1e-6 to 1e6, rates
    and mean delays of 1e-3 to 1e3, relative to 40 digits, in float64: 2e-15 with weights on, or
    mixtures of, 12 stages, 1.2e-14 with 4 phases of any shape (100 systems each); with weights on
    30 stages over gains of 1e-3 to 1e3 2e-15. In float32, with weights on 8 stages, 8e-7 where
    `certified_root` is complete, 94 in 100; where it is not there may be no digit left. By
    transform 6e-15 in float64 and 6e-7 in float32, over gains of 1e-6 to 1e6, rates of 0.01 to 100
    and mean delays of 1e-4 to 1e4. Near a double root always the square root of the precision.

    **Cost:** by `erlang_root` fixed; by eigenvalues O(L^3), on the host; by transform fixed, 50 000
    evaluations of it and of its slope.
    """
    require_one(system)
    # Before tracing hides the numbers.
    system.require_two_alike()
    if is_erlang(system):
        # Not inside a program of this system: there a new number of stages would recompile.
        return erlang_root(*parameters_of(system)).root
    return _root_of_other(system)


@eqx.filter_jit
@domain.of_system
def _root_of_other(system: System) -> Complex[Array, ""]:
    if isinstance(system.delay, AbstractPhaseDelay):
        return dense_root(system)[0]
    return _law_root(system).root


def certified_root(system: System) -> CertifiedRoot:
    """`rightmost_root` with a check that none is right of it.

    A delay with phases has its eigenvalues computed all at once, which is more reliable than any
    search; they are compared with the characteristic residual on a line just right of the first.
    For a law with a transform alone, `Deterministic` too, roots right of a line are counted by the
    argument principle: see `jaxlb.stability.laws`. It is not found left of the abscissa of
    convergence, where a formula may go on but the transform does not; nor among thousands of turns
    on the line, such as those of a window of 10 s at a gain of 10^6.

    **Accuracy:** of 1000 random systems each, in the ranges of `rightmost_root`, all are complete
    for a constant delay and for 3, 8 and 50 Erlang stages by transform; none is wrong. A root
    may have others up to 6e-7 of 1 / mean, or of itself, to its right. A pole of weight 1e-10 still
    stops the search.
    """
    require_one(system)
    system.require_two_alike()
    return _certified_root(system)


@domain.of_system
@eqx.filter_jit
def _certified_root(system: System) -> CertifiedRoot:
    if not isinstance(system.delay, AbstractPhaseDelay):
        return _law_root(system)
    root, values = dense_root(system)
    complete = are_all(hold(system), jax.lax.stop_gradient(root), values)
    return CertifiedRoot(jnp.where(complete, root, complex(jnp.nan, jnp.nan)), complete)


def _law_root(system: System) -> CertifiedRoot:
    law = _law(system)
    # What a law given as a function holds inside is held constant too; else a derivative of the
    # root would drag that of the whole search along.
    point = jnp.zeros_like(law.gain, jnp.result_type(law.gain, jnp.complex64))
    transform, inner = jax.closure_convert(law.transform, point)
    inner = jax.lax.stop_gradient(inner)
    held = laws.Law(
        lambda r: transform(r, *inner),
        jax.lax.stop_gradient(law.service_rate),
        jax.lax.stop_gradient(law.gain),
    )
    found, complete = laws.search(held)
    # A finite place for the derivative where none was found.
    found = jax.lax.stop_gradient(jnp.where(complete, found, 1.0))
    root, _ = follow(law.residual, found)
    return CertifiedRoot(
        jnp.where(complete, root, complex(jnp.nan, jnp.nan)), jax.lax.stop_gradient(complete)
    )


def _law(system: System) -> laws.Law:
    dtype = jnp.result_type(*system.numbers)

    def transform(r):
        # A law of the user's may compute in another precision.
        return system.delay.transform(r).astype(r.dtype)

    gain = -imbalance.feedback(system)[0]
    return laws.Law(transform, system.common_service_rate.astype(dtype), gain.astype(dtype))


def spectral_abscissa(system: System) -> Float[Array, ""]:
    """Largest real part among the eigenvalues of the difference mode, 1/s.

    Negative: balance is locally stable. Zero: on the Hopf boundary. Positive: an imbalance grows.
    Differentiable; see `rightmost_root` for accuracy, cost and errors.
    """
    return rightmost_root(system).real


def oscillation_frequency(system: System) -> Float[Array, ""]:
    """Frequency at which the slowest imbalance turns, rad/s; zero where it does not.

    Imaginary part of `rightmost_root`, differentiable like it.
    """
    return rightmost_root(system).imag
