"""Closed forms of the imbalance's linear-noise variance, for one stage, two, or a constant delay.

With P_0 = 2 lambda / mu the variance without feedback, gamma the rate of a stage, kappa the gain
lambda theta and m = mu + kappa,

    one stage:   P / P_0 = mu (m + gamma) / (m (mu + gamma)),
    two stages:  P / P_0 = mu (m (3 gamma + 2 mu) + gamma (mu + 2 gamma)) / (m gamma (h - kappa)),
    constant:    P / P_0 = mu (1 + kappa sin(v D) / v) / (mu + kappa cos(v D)),

where h is the gain at the Hopf point (`jaxlb.stability.two_stage_critical_gain`) and v^2 is
kappa^2 - mu^2, with hyperbolic functions where that is negative. The last is the variance of
dx = -(mu x + kappa x(t - D)) dt + noise of intensity 4 lambda, which has the spectrum of the
imbalance: with nothing in transit looked at, that is the one without feedback, 4 lambda /
(w^2 + mu^2), over |1 + G|^2, for any law of the delay.

**Source:** Kuechler and Mensch (1992), Stochastics and Stochastic Reports 40, for the last.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..model.delays import Deterministic, Erlang
from ..model.routing import Logit
from ..model.system import System, require_one
from ..stability import critical_sensitivity, domain, two_stage_critical_gain

# Below this the sine is a series of so many terms.
SMALL, TERMS = 0.25, 9


def one_stage_variance(system: System) -> Float[Array, ""]:
    """Stationary variance of Q_1 - Q_2 over the scale by linear noise, jobs^2: closed form.

    For any two of the servers.

    **Raises:** `ValueError` unless the delay is `Erlang` with one stage, the rule `Logit`, and
    there are two servers or more, alike.
    """
    return _closed(system, 1)


def two_stage_variance(system: System) -> Float[Array, ""]:
    """As `one_stage_variance`, with two stages.

    Infinite, with derivatives of zero, from the Hopf point on; relative error there, rounding over
    the relative distance to it.
    """
    return _closed(system, 2)


def constant_delay_variance(system: System) -> Float[Array, ""]:
    """As `two_stage_variance`, with a `Deterministic` delay.

    **Accuracy:** relative, 1e-12 up to 0.99 of the Hopf gain.
    """
    require_one(system)
    system.require_two_alike()
    if not isinstance(system.delay, Deterministic):
        raise ValueError(f"`delay` must be Deterministic, got {system.delay!r}.")
    return _of_logit(system)


def has_closed_form(system: System) -> bool:
    """Whether one of the three applies."""
    delay = system.delay
    few = isinstance(delay, Deterministic) or (isinstance(delay, Erlang) and delay.stages <= 2)
    return isinstance(system.routing, Logit) and few


def closed_form(system: System, gain: Float[Array, ""]) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """Variance at this gain, not the system's own, and whether balance is stable; zero if not."""
    delay, service = system.delay, system.common_service_rate
    if isinstance(delay, Deterministic):
        return _constant(system, gain)
    assert isinstance(delay, Erlang)
    stage, pull = delay.stage_rate, service + gain
    if delay.stages == 1:
        part = (pull + stage) / (pull * (service + stage))
        return 2 * system.arrival_rate * part, jnp.ones((), bool)
    critical = two_stage_critical_gain(system)
    left = critical - gain
    # On the boundary rounding must not decide.
    stable = left > 4 * jnp.finfo(left.dtype).eps * critical
    top = pull * (3 * stage + 2 * service) + stage * (service + 2 * stage)
    part = top / (pull * stage * jnp.where(stable, left, 1.0))
    return jnp.where(stable, 2 * system.arrival_rate * part, 0.0), stable


def _constant(system: System, gain: Float[Array, ""]) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    mean, service = system.delay.mean, system.common_service_rate
    critical = system.arrival_rate * critical_sensitivity(system)
    stable = gain < critical * (1 - 4 * jnp.finfo(gain.dtype).eps)
    gain = jnp.where(stable, gain, 0.0)
    square = (gain - service) * (gain + service) * mean**2
    sine, cosine, size = _trigonometric(square)
    part = (size + gain * mean * sine) / (service * size + gain * cosine)
    return jnp.where(stable, 2 * system.arrival_rate * part, 0.0), stable


def _trigonometric(square: Float[Array, ""]) -> tuple[Array, Array, Array]:
    """sin(v) / v and cos(v), v^2 given, both over a size such that neither overflows; the size's
    inverse."""
    root = jnp.sqrt(jnp.maximum(jnp.abs(square), SMALL))
    # Not to zero: without feedback it is all there is.
    size = jnp.maximum(jnp.exp(-root), jnp.finfo(root.dtype).tiny)
    down = jnp.exp(-2 * root)
    near = jnp.where(jnp.abs(square) < SMALL, square, 0.0)
    sine, cosine = jnp.ones_like(near), jnp.ones_like(near)
    for k in reversed(range(1, TERMS)):
        sine = 1 - near * sine / (2 * k * (2 * k + 1))
        cosine = 1 - near * cosine / (2 * k * (2 * k - 1))
    flat, turning = jnp.abs(square) < SMALL, square >= SMALL
    one = flat | turning
    sine = jnp.where(flat, sine, jnp.where(turning, jnp.sin(root) / root, (1 - down) / 2 / root))
    cosine = jnp.where(flat, cosine, jnp.where(turning, jnp.cos(root), (1 + down) / 2))
    return sine, cosine, jnp.where(one, 1.0, size)


def _closed(system: System, stages: int) -> Float[Array, ""]:
    require_one(system)
    system.require_two_alike()
    if not (isinstance(system.delay, Erlang) and system.delay.stages == stages):
        raise ValueError(f"`delay` must be Erlang(mean, {stages}), got {system.delay!r}.")
    return _of_logit(system)


def _of_logit(system: System) -> Float[Array, ""]:
    if not isinstance(system.routing, Logit):
        raise ValueError(f"`routing` must be Logit, got {type(system.routing).__name__}.")
    return _variance(system)


@domain.of_system
def _variance(system: System) -> Float[Array, ""]:
    gain = system.arrival_rate * system.routing.sensitivity  # pyright: ignore
    variance, stable = closed_form(system, gain)
    return jnp.where(stable, variance, jnp.inf)
