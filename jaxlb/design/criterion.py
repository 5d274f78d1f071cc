"""Criteria: one number of one system each, differentiable, to be compared and tuned.

Three of them answer what "suppress the oscillation" may mean: how fast balance returns
(`decay_rate`), when it is within a tolerance (`settling_time`), how much it fluctuates meanwhile
(`stationary_variance`). They disagree: see `experiments/open_questions`.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _checks
from ..fluid import settling_time as time_of_settling
from ..model import imbalance
from ..model.delays import Deterministic
from ..model.routing import Logit
from ..model.system import System, require_one
from ..stability import pseudospectral_abscissa, spectral_abscissa, worst_abscissa
from ..stability.domain import flagged, is_valid, of_system
from ..stochastic import constant_delay_variance, imbalance_variance
from ..stochastic.linear_noise import imbalance_covariance
from ..stochastic.lyapunov import lyapunov

# Mean times of a job in the system within which it must settle, by default.
HORIZON = 40.0
# By how much the mean delay may be wrong.
ERROR = 0.1


def decay_rate(system: System) -> Float[Array, ""]:
    """Rate at which a small imbalance dies out, 1/s: minus `jaxlb.stability.spectral_abscissa`.

    Not Lipschitz where two roots meet, which is where it is best.
    """
    return -spectral_abscissa(system)


def worst_decay_rate(system: System, error: Any = ERROR) -> Float[Array, ""]:
    """Least `decay_rate` while the mean delay is wrong by up to `error`, its law keeping its shape.

    **Arguments:** `error`: relative, in (0, 1): the mean is from D (1 - error) to D (1 + error),
    while the rule stays as it is.

    **Raises:** `ValueError` on a bad argument; otherwise as `jaxlb.stability.worst_abscissa`.
    """
    require_one(system)
    error = _checks.positive("error", error)
    _checks.require("error", error, lambda v: v < 1, "below 1")
    mean = system.delay.mean
    return -worst_abscissa(system, mean * (1 - error), mean * (1 + error)).abscissa


def pseudospectral_decay_rate(system: System, radius: Any) -> Float[Array, ""]:
    """Least `decay_rate` of the linearised system changed by any matrix of norm `radius`, 1/s."""
    return -pseudospectral_abscissa(system, radius)


class SettlingTime(eqx.Module):
    """Settling time of a system that is stable.

    - `value`: s; infinite where balance is not stable, or not reached within the horizon.
    - `valid`: whether neither is so.
    - `stable`: whether balance is.
    - `next_lobe`, `last_lobe`: as in `jaxlb.fluid.Settling`: how far the time is from a jump up,
      and down, relative to the level.
    """

    value: Float[Array, ""]
    valid: Bool[Array, ""]
    stable: Bool[Array, ""]
    next_lobe: Float[Array, ""]
    last_lobe: Float[Array, ""]

    @property
    def cliff(self) -> Float[Array, "..."]:
        """The distance to the next jump: the smaller of the two."""
        return jnp.minimum(self.next_lobe, self.last_lobe)


def settling_time(
    system: System, initial: Any = None, *, tolerance: Any = 0.05, horizon: Any = None
) -> SettlingTime:
    """Time after which the imbalance of the nonlinear fluid limit stays within a tolerance.

    With a check of stability: a limit cycle smaller than the tolerance has settled too.

    **Arguments:** `initial`: as in `jaxlb.fluid.solve`: one job at each server but the first.
    `tolerance`: relative to the imbalance at time zero. `horizon`: s; by default 40 times the mean
    time of a job in the system.

    **Returns:** a `SettlingTime`, differentiable once, at the last crossing; it jumps where a
    maximum touches the tolerance.

    **Raises:** `ValueError` on a bad argument.

    **Accuracy, Cost:** as `jaxlb.fluid.settling_time`.
    """
    require_one(system)
    system.require_two_alike()
    if horizon is None:
        horizon = HORIZON * (system.delay.mean + 1 / jnp.min(system.service_rates))
    found = time_of_settling(system, initial, horizon=horizon, tolerance=tolerance, panels=128)
    stable = spectral_abscissa(jax.lax.stop_gradient(system)) < 0
    valid = found.valid & stable
    lobes = (jnp.where(valid, lobe, jnp.nan) for lobe in (found.next_lobe, found.last_lobe))
    return SettlingTime(jnp.where(valid, found.value, jnp.inf), valid, stable, *lobes)


def stationary_variance(system: System, scale: Any = 1.0) -> Float[Array, ""]:
    """Variance of the imbalance Q_1 - Q_2 at rest, jobs^2, by statistical linearisation.

    The number alone: `jaxlb.stochastic.imbalance_variance` says whether it can be trusted.
    """
    return imbalance_variance(system, scale).variance


def linear_noise_variance(system: System, scale: Any = 1.0) -> Float[Array, ""]:
    """The same by linear noise; infinite where balance is not stable."""
    require_one(system)
    system.require_two_alike()
    scale = _checks.positive("scale", scale)
    if isinstance(system.delay, Deterministic) and isinstance(system.routing, Logit):
        return scale * constant_delay_variance(system)
    system.phase_delay("a stationary variance")
    return flagged(is_valid(system) & _checks.is_positive(scale), _linear, system, scale)


@eqx.filter_jit
def _linear(system: System, scale: Array) -> Float[Array, ""]:
    covariance, stable = imbalance_covariance(system)
    return jnp.where(stable, scale * covariance[0, 0], jnp.inf)


def integrated_squared_error(system: System) -> Float[Array, ""]:
    """Integral of x(t)^2 over all times, of the linearised imbalance with x(0) = 1, in s.

    Infinite, with derivatives of zero, where balance is not stable. With a rule that looks at the
    queues alone it is the linear-noise variance over 4 lambda, so that the two are one criterion;
    with weights they differ.

    **Raises:** `ValueError` for a delay without phases, but a `Deterministic` one under `Logit`.
    """
    require_one(system)
    if isinstance(system.delay, Deterministic) and isinstance(system.routing, Logit):
        return constant_delay_variance(system) / (4 * system.arrival_rate)
    system.phase_delay("the squared error")
    system.require_two_alike()
    return _squared_error(system)


@eqx.filter_jit
@of_system
def _squared_error(system: System) -> Float[Array, ""]:
    matrix = imbalance.matrix(system)
    output = jnp.zeros(len(matrix), matrix.dtype).at[0].set(1.0)
    found, stable = lyapunov(matrix.T, jnp.outer(output, output))
    return jnp.where(stable, found[0, 0], jnp.inf)


def control_effort(system: System, scale: Any = 1.0) -> Float[Array, ""]:
    """Standard deviation of the difference of the inflows of two servers, jobs/s, by linear noise.

    How hard the dispatcher works. `jaxlb.design.relay_effort` is the most that there can be; beyond
    a third of it linear noise is wrong. Infinite where balance is not stable.

    **Raises:** `ValueError` as `integrated_squared_error`, and on a bad scale.
    """
    require_one(system)
    system.require_two_alike()
    scale = _checks.positive("scale", scale)
    if isinstance(system.delay, Deterministic) and isinstance(system.routing, Logit):
        gain = system.arrival_rate * system.routing.sensitivity
        return gain * jnp.sqrt(scale * constant_delay_variance(system))
    system.phase_delay("a control effort")
    valid = is_valid(system) & _checks.is_positive(scale)
    return flagged(valid, _effort, system, scale)


@eqx.filter_jit
def _effort(system: System, scale: Array) -> Float[Array, ""]:
    covariance, stable = imbalance_covariance(system)
    gain = imbalance.feedback(system)
    square = scale * (gain @ covariance @ gain)
    # The root has no slope at zero, where nothing is done.
    some = stable & (square > 0)
    effort = jnp.where(some, jnp.sqrt(jnp.where(some, square, 1.0)), 0.0)
    return jnp.where(stable, effort, jnp.inf)


def settling_cliff(
    system: System, initial: Any = None, *, tolerance: Any = 0.05, horizon: Any = None
) -> Float[Array, ""]:
    """`SettlingTime.cliff`, to be kept above some distance; zero where not settled."""
    found = settling_time(system, initial, tolerance=tolerance, horizon=horizon)
    return jnp.where(found.valid, found.cliff, 0.0)
