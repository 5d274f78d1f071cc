"""The characteristic equation of the difference mode, whatever the delay law and the rule."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Complex, Float, Inexact

from .._logarithms import complex_log1p
from ..model import imbalance
from ..model.delays import AbstractPhaseDelay, Erlang, MixedErlang
from ..model.routing import Logit
from ..model.system import System, require_one

Residual = Callable[[Complex[Array, ""]], Complex[Array, ""]]


def characteristic_residual(system: System, root: Inexact[Array, ""]) -> Complex[Array, ""]:
    """Left-hand side of equation (17) at complex `root`, 1/s; zero at an eigenvalue of A_L.

    **Accuracy:** the delay's transform is evaluated through its logarithm, so that a million stages
    cost no digits: within 1e-15 of 40-digit arithmetic, relative to
    |r| + mu + lambda theta |f| (1 + |r D / (1 + r D / L)|).

    **Cost:** O(1) in the number of stages for `Logit`; O(stages) for `WeightedLogit`.
    """
    require_one(system)
    service, delay = root + system.common_service_rate, system.delay
    if isinstance(system.routing, Logit):
        gain = system.arrival_rate * system.routing.sensitivity
        return service + gain * delay.transform(root)
    gain = imbalance.feedback(system)
    residual = service - gain[0] * delay.transform(root)
    if isinstance(delay, AbstractPhaseDelay) and delay.num_phases:
        residual = residual - service * (gain[1:] @ delay.phase_transform(root))
    return residual


def hold(system: System) -> System:
    """`system` without derivatives."""
    return jax.tree.map(
        lambda leaf: jax.lax.stop_gradient(leaf) if eqx.is_inexact_array(leaf) else leaf, system
    )


def scaled_residual(
    system: System,
) -> Callable[[Complex[Array, ""]], tuple[Complex[Array, ""], Float[Array, ""]]]:
    """`characteristic_residual` of a delay with phases as a pair: it is value * exp(exponent).

    Of a chain both stay finite however many its stages: near the stages' own rate the transform
    overflows. The exponent, a scale, is held constant in differentiation.
    """
    delay, service_rate = system.phase_delay("phases"), system.common_service_rate
    if not isinstance(delay, Erlang | MixedErlang):
        return lambda r: (
            characteristic_residual(system, r),
            jnp.zeros_like(service_rate),
        )
    gain, rate = imbalance.feedback(system), delay.stage_rate
    initial, count = delay.initial, delay.num_phases
    # Of the powers of 1 / V = 1 / (1 + r / gamma): to service, and to the phases that are weighed.
    done = initial[::-1]
    seen = jnp.correlate(gain[1:], initial, "full")[count - 1 :] / rate
    power = jnp.arange(1, count + 1, dtype=rate.dtype)

    def residual(r):
        log_passed = -complex_log1p(r / rate)
        exponent = jax.lax.stop_gradient(jnp.max(log_passed.real * jnp.array([0, 1, count])))
        powers = jnp.exp(power * log_passed - exponent)
        service = r + service_rate
        whole = service * (jnp.exp(-exponent) - seen @ powers) - gain[0] * (done @ powers)
        return whole, exponent

    return residual


def newton(residual: Residual, root: Complex[Array, ""], steps: int) -> Complex[Array, ""]:
    """`steps` steps of Newton's method; where the slope vanishes or overflows it stays."""

    def step(r, _):
        value, slope = jax.jvp(residual, (r,), (jnp.ones_like(r),))
        there = r - value / slope
        return jnp.where(jnp.isfinite(there), there, r), None

    return jax.lax.scan(step, root, length=steps)[0]


def follow(
    residual: Residual, root: Complex[Array, ""]
) -> tuple[Complex[Array, ""], Bool[Array, ""]]:
    """A root found, as a function of all that `residual` depends on, and whether it is simple.

    Two steps of Newton's method from the root held constant leave an error of fourth order in a
    change of parameters, so that derivatives up to the third are those of the root. At a double
    root they do not exist and are zero.
    """
    at = jax.lax.stop_gradient(root)
    _, slope = jax.jvp(residual, (at,), (jnp.ones_like(at),))
    slope = jax.lax.stop_gradient(slope)
    # A double root is found to the square root of the precision, and so is its slope, zero.
    simple = jnp.isfinite(slope) & (jnp.abs(slope) > 100 * jnp.finfo(slope.dtype).eps ** 0.5)
    # Masked before the derivative, not after: zero times infinity is NaN in the transpose.
    r = jnp.where(simple, at, 1.0)
    for _ in range(2):
        value, slope = jax.jvp(residual, (r,), (jnp.ones_like(r),))
        step = value / jnp.where(simple, slope, 1.0)
        r = r - jnp.where(simple, step, 0.0)
    r = jnp.where(simple, r, at)
    # A real root stays real.
    return jax.lax.complex(r.real, jnp.where(at.imag == 0, 0.0, r.imag)), simple
