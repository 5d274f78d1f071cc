"""Which sensitivities are stable: all windows, not only the first.

Roots are continuous in the gain, stable without it, and cross the imaginary axis where the loop at
unit sensitivity, h, is real and positive: at sensitivity 1 / h, one way or the other. Counting the
crossings in the order of their sensitivities counts the roots to the right between them.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..model.routing import AbstractLogit
from ..model.system import System, require_one
from ..stability import critical_sensitivity, hopf_frequency, loop
from ..stability.axis import KEPT, REACH, crossings, fastest_rate, frequency_grid, implicit
from ..stability.domain import flagged, is_valid
from ..stability.erlang import is_erlang

# Windows kept.
WINDOWS = 8


class UnstableSensitivities(eqx.Module):
    """Sensitivities at which balance is unstable, per job.

    - `windows`: lower and upper end of each window, increasing; the last may be infinite. Padded by
      NaN.
    - `periods`: s, of the oscillation that is born at each lower end; infinite if none is.
    - `sensitivity`: the system's own.
    """

    windows: Float[Array, "kept 2"]
    periods: Float[Array, " kept"]
    sensitivity: Float[Array, ""]

    @property
    def stable_for_every(self) -> Bool[Array, "..."]:
        """Whether there is no such sensitivity."""
        return ~jnp.any(self._there, axis=-1)

    @property
    def stable(self) -> Bool[Array, "..."]:
        """Whether balance is stable at the system's own."""
        theta = self.sensitivity[..., None]
        inside = (theta >= self.windows[..., 0]) & (theta <= self.windows[..., 1])
        return ~jnp.any(self._there & inside, axis=-1)

    @property
    def conditional(self) -> Bool[Array, "..."]:
        """Whether balance is stable at the system's own but unstable at some lower one.

        Large fluctuations act like a lower sensitivity, since the rule saturates; so such a
        system, once far from balance, stays there. Linear noise does not see that.
        """
        below = self.windows[..., 0] < self.sensitivity[..., None]
        return self.stable & jnp.any(self._there & below, axis=-1)

    @property
    def _there(self) -> Bool[Array, "... kept"]:
        return ~jnp.isnan(self.windows[..., 0])

    def __str__(self) -> str:
        if bool(self.stable_for_every):
            return "Stable for every sensitivity."
        parts = [f"{low:.4g} to {high:.4g}" for low, high in self.windows if not jnp.isnan(low)]
        text = f"Unstable at sensitivities {', '.join(parts)} per job."
        if bool(self.conditional):
            text += (
                f" STABLE ONLY CONDITIONALLY: {self.sensitivity:.4g} is stable, but fluctuations "
                "act like a lower sensitivity; expect far more of them than linear noise says."
            )
        return text


def stable_for_every_sensitivity(system: System) -> UnstableSensitivities:
    """The windows of sensitivity at which balance is unstable, below and above the system's own.

    **Arguments:** `system`: with a logit rule, whose weights on jobs in transit are kept while
    its sensitivity goes from zero to infinity.

    **Returns:** an `UnstableSensitivities`, differentiable once.

    **Raises:** `ValueError` unless the rule is a logit rule and servers are two or more, alike.

    **Accuracy:** ends with two stages to 1e-12 of the closed form; with 5 and 10 weighted stages
    the abscissa there is within 1e-8 of zero (`tests/design/test_weights.py`). The first 32
    crossings in frequency are counted.

    **Cost:** 2048 evaluations of the delay's transform and 32 times 20 for the crossings: on one
    core 2 ms with 2 stages, 10 ms with 50 (`experiments/benchmarks/design_costs.py`).
    """
    require_one(system)
    system.require_two_alike()
    routing = system.routing
    if not isinstance(routing, AbstractLogit):
        raise ValueError(f"`routing` must be a logit rule here, got {type(routing).__name__}.")
    windows = _one_window if is_erlang(system) else _windows
    return flagged(is_valid(system), windows, system, routing.sensitivity)


def _one_window(system: System, sensitivity: Array) -> UnstableSensitivities:
    """With the paper's rule and an Erlang or constant delay: from the Hopf point on."""
    critical, frequency = critical_sensitivity(system), hopf_frequency(system)
    there = jnp.isfinite(critical)
    first = jnp.stack([jnp.where(there, critical, jnp.nan), jnp.where(there, jnp.inf, jnp.nan)])
    windows = jnp.full((WINDOWS, 2), jnp.nan, first.dtype).at[0].set(first)
    period = jnp.where(there, 2 * jnp.pi / jnp.where(there, frequency, 1.0), jnp.nan)
    periods = jnp.full(WINDOWS, jnp.nan, period.dtype).at[0].set(period)
    return UnstableSensitivities(windows, periods, sensitivity)


@eqx.filter_jit
def _windows(system: System, sensitivity: Array) -> UnstableSensitivities:
    unit = eqx.tree_at(lambda s: s.routing.sensitivity, system, jnp.ones_like(sensitivity))
    found = crossings(lambda w: _unit_loop(unit, w).imag[None], _frequencies(unit))
    frequency = jnp.append(found.at[0], 0.0)
    level, slope = jax.vmap(lambda w: _with_slope(unit, w))(frequency)
    # Below this, relative to the largest there can be, rounding decides the sign.
    floor = loop.ROUNDINGS * jnp.finfo(level.dtype).eps * jnp.max(jnp.abs(level))
    there = jnp.append(found.there[0], True) & (level.real > floor)
    theta = jnp.where(there, 1 / jnp.where(there, level.real, 1.0), jnp.inf)
    # From 1 = theta h(r): dr / dtheta = -h / (theta h').
    outwards = jnp.where(-(level / slope).real > 0, 1, -1)
    number = jnp.where(there, outwards * jnp.where(frequency > 0, 2, 1), 0)
    order = jnp.argsort(theta)
    theta, frequency = theta[order], frequency[order]
    right = jnp.cumsum(number[order])
    begins = (right > 0) & (jnp.append(0, right[:-1]) == 0) & (number[order] != 0)
    ends = (right == 0) & (jnp.append(0, right[:-1]) > 0) & (number[order] != 0)
    (low,) = jnp.nonzero(begins, size=WINDOWS, fill_value=KEPT + 1)
    (high,) = jnp.nonzero(ends, size=WINDOWS, fill_value=KEPT + 1)
    theta = jnp.append(theta, jnp.inf)
    lower = jnp.where(low <= KEPT, theta[low], jnp.nan)
    upper = jnp.where(low <= KEPT, jnp.where(high <= KEPT, theta[high], jnp.inf), jnp.nan)
    frequency = jnp.append(frequency, 0.0)[low]
    turns = frequency > 0
    period = jnp.where(turns, 2 * jnp.pi / jnp.where(turns, frequency, 1.0), jnp.inf)
    period = jnp.where(low <= KEPT, period, jnp.nan)
    return UnstableSensitivities(jnp.stack([lower, upper], axis=1), period, sensitivity)


def _frequencies(unit: System) -> Float[Array, " points"]:
    rate, delay = unit.common_service_rate, unit.delay
    slow = jnp.minimum(1 / delay.mean, rate)
    top = REACH * jnp.maximum(fastest_rate(delay), rate)
    return jax.lax.stop_gradient(frequency_grid(1e-3 * slow, 6 * slow, top))


def _unit_loop(unit: System, frequency: Float[Array, ""]) -> Array:
    return -loop.on_axis(unit, frequency)


def _with_slope(unit: System, frequency: Float[Array, ""]):
    """h and its derivative along r at i times the frequency, where Im h is zero."""
    moved = implicit(lambda w: _unit_loop(unit, w).imag, frequency)
    at = jnp.where(frequency > 0, moved, 0.0)
    value, slope = jax.jvp(lambda w: _unit_loop(unit, w), (at,), (jnp.ones_like(at),))
    return value, jax.lax.stop_gradient(slope / 1j)
