"""Closed forms of the imbalance's linear-noise variance, for one and two stages.

With P_0 = 2 lambda / mu the variance without feedback, gamma the rate of a stage, kappa the gain
lambda theta and m = mu + kappa,

    one stage:   P / P_0 = mu (m + gamma) / (m (mu + gamma)),
    two stages:  P / P_0 = mu (m (3 gamma + 2 mu) + gamma (mu + 2 gamma)) / (m gamma (h - kappa)),

where h is the gain at the Hopf point (`jaxlb.stability.two_stage_critical_gain`).
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..model.delays import Erlang
from ..model.routing import Logit
from ..model.system import System, require_one
from ..stability import domain, two_stage_critical_gain


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


def has_closed_form(system: System) -> bool:
    """Whether one of the two applies."""
    delay = system.delay
    return isinstance(system.routing, Logit) and isinstance(delay, Erlang) and delay.stages <= 2


def closed_form(system: System, gain: Float[Array, ""]) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """Variance at this gain, not the system's own, and whether balance is stable; zero if not."""
    delay, service = system.delay, system.common_service_rate
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


def _closed(system: System, stages: int) -> Float[Array, ""]:
    require_one(system)
    system.require_two_alike()
    if not (isinstance(system.delay, Erlang) and system.delay.stages == stages):
        raise ValueError(f"`delay` must be Erlang(mean, {stages}), got {system.delay!r}.")
    if not isinstance(system.routing, Logit):
        raise ValueError(f"`routing` must be Logit, got {type(system.routing).__name__}.")
    return _variance(system)


@domain.of_system
def _variance(system: System) -> Float[Array, ""]:
    gain = system.arrival_rate * system.routing.sensitivity  # pyright: ignore
    variance, stable = closed_form(system, gain)
    return jnp.where(stable, variance, jnp.inf)
