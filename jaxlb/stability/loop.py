"""The feedback loop, cut open, and its gain at each frequency.

Cut where the routed inflow leaves the dispatcher, the linearised difference mode is a loop of gain

    G(r) = -(g_x f(r) + (r + mu) g_w . phi(r)) / (r + mu),

with f, phi and g as in `jaxlb.stability.spectrum`; lambda theta f(r) / (r + mu) for the paper's
rule. Its roots solve 1 + G(r) = 0. Without feedback it is stable, so that roots reach the right
half plane only through the imaginary axis.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float, Inexact

from ..model import imbalance
from ..model.delays import AbstractPhaseDelay, NoDelay
from ..model.routing import Logit
from ..model.system import System, require_one
from .axis import REACH, fastest_rate, frequency_grid

# Real parts of G below this many roundings of it may have any sign.
ROUNDINGS = 1e3


def open_loop(system: System, root: Inexact[Array, ""]) -> Complex[Array, ""]:
    """Gain G of the feedback loop at complex `root`, 1/s: dimensionless; 1 + G is zero at a root.

    On the imaginary axis it is the Nyquist curve.

    **Raises:** `ValueError` unless there are two or more servers of one service rate.
    """
    require_one(system)
    system.require_two_alike()
    delay, service = system.delay, root + system.common_service_rate
    gain = feedback(system)
    return -gain[0] * delay.transform(root) / service - transit_gain(system, gain, root)


def transit_gain(
    system: System, gain: Float[Array, " modes"], root: Inexact[Array, ""]
) -> Complex[Array, ""]:
    """g_w . phi at `root`, dimensionless, from the feedback `gain` of the system's rule."""
    if isinstance(system.delay, AbstractPhaseDelay) and gain.size > 1:
        return gain[1:] @ system.delay.phase_transform(root)
    return jnp.zeros_like(root, jnp.result_type(root, jnp.complex64))


def on_axis(system: System, frequency: Float[Array, ""]) -> Complex[Array, ""]:
    """G at i times `frequency`, rad/s."""
    return open_loop(system, jax.lax.complex(jnp.zeros_like(frequency), frequency))


def frequencies(system: System) -> Float[Array, " points"]:
    """Frequencies, rad/s, from a thousandth of the slower of service and delay to beyond all."""
    service, gain = system.common_service_rate, jnp.abs(feedback(system)[0])
    slow, fast = service, jnp.maximum(service, gain)
    if not isinstance(system.delay, NoDelay):
        slow = jnp.minimum(slow, 1 / system.delay.mean)
        fast = jnp.maximum(fast, fastest_rate(system.delay))
    return jax.lax.stop_gradient(frequency_grid(1e-3 * slow, 6 * slow, REACH * fast))


def feedback(system: System) -> Float[Array, " modes"]:
    """As `jaxlb.model.imbalance.feedback`, g_x alone for the paper's rule: any delay will do."""
    if isinstance(system.routing, Logit):
        return -(system.arrival_rate * system.routing.sensitivity)[None]
    return imbalance.feedback(system)
