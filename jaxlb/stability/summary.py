"""All that there is to say about the stability of a system with the paper's rule, in one call."""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .. import _checks
from ..model.delays import AbstractPhaseDelay
from ..model.system import System
from .boundary import (
    critical_delay,
    critical_gain_for_every_delay,
    critical_sensitivity,
    hopf_frequency,
    per_arrival,
)
from .descent import search
from .erlang import is_erlang
from .erlang_boundary import DelayWindow
from .measures import damping_ratio, decay_time
from .optimum import Optimum, best_sensitivity
from .robustness import Margins, margins
from .spectrum import rightmost_root

# Where balance is never lost, sensitivities are looked at up to this gain, in units of the faster
# of service and delay: the abscissa is then close to where it tends to.
LARGEST_GAIN = 1e4
# For laws without phases: finer grids, their points, and e-folds that the first reaches down.
ZOOMS, POINTS, LOWEST = 10, 25, 20.0


class Summary(NamedTuple):
    """Stability of a system; see `summary`."""

    abscissa: Float[Array, ""]
    frequency: Float[Array, ""]
    stable: Bool[Array, ""]
    decay_time: Float[Array, ""]
    period: Float[Array, ""]
    damping_ratio: Float[Array, ""]
    critical_sensitivity: Float[Array, ""]
    hopf_frequency: Float[Array, ""]
    hopf_period: Float[Array, ""]
    unstable_means: DelayWindow
    safe_gain: Float[Array, ""]
    safe_sensitivity: Float[Array, ""]
    best_sensitivity: Optimum
    margins: Margins


def summary(system: System) -> Summary:
    """Whether balance is stable, how an imbalance moves, and what would change that.

    **Returns:** a `Summary` of scalars:

    - `abscissa`, 1/s, `frequency`, rad/s: of the rightmost root; `stable`: whether the first is
      negative. `decay_time`, s: see there; infinite if unstable. `period`, s, of the oscillation;
      infinite if there is none. `damping_ratio`: see there.
    - `critical_sensitivity`, per job, `hopf_frequency`, rad/s: see there; `hopf_period`, s: of the
      oscillation born there, infinite if none is.
    - `unstable_means`, s: `critical_delay` at the system's own sensitivity.
    - `safe_gain`, 1/s: `critical_gain_for_every_delay`; `safe_sensitivity`, per job: the same over
      the arrival rate. Below it balance is stable whatever the mean delay.
    - `best_sensitivity`: the fastest decay there is, over sensitivities.
    - `margins`: see there.

    The best sensitivity of a law without a closed form is found by `jaxlb.stability.search`, or, of
    one without phases, by a search on the abscissa alone: below the critical one or, if there is
    none, below 10^4 times the faster of service and mean delay, as a gain. For such a law this
    cannot be traced.

    **Raises:** `ValueError` unless the rule is `Logit` and two servers or more are alike.

    **Cost:** that of its parts, each compiled by itself: 3 s at first, 20 s for a law without a
    closed form; then 3 ms, and 2 s for the search.
    """
    # First, for it says what is wrong with the system.
    window = critical_delay(system)
    root = rightmost_root(system)
    critical, frequency = critical_sensitivity(system), hopf_frequency(system)
    gain = critical_gain_for_every_delay(system)
    return Summary(
        abscissa=root.real,
        frequency=root.imag,
        stable=root.real < 0,
        decay_time=decay_time(system),
        period=_period(root.imag),
        damping_ratio=damping_ratio(system),
        critical_sensitivity=critical,
        hopf_frequency=frequency,
        hopf_period=_period(frequency),
        unstable_means=window,
        safe_gain=gain,
        safe_sensitivity=per_arrival(gain, system),
        best_sensitivity=fastest(system),
        margins=margins(system),
    )


def fastest(system: System) -> Optimum:
    """`best_sensitivity`, by search where it has no closed form, for any logit rule."""
    closed = is_erlang(system)
    if closed or not _checks.is_concrete(system):
        return best_sensitivity(system)
    critical, largest = float(critical_sensitivity(system)), float(largest_sensitivity(system))
    stable = math.isfinite(critical)
    start, upper = (critical / 10, critical) if stable else (largest / LARGEST_GAIN, largest)
    if not isinstance(system.delay, AbstractPhaseDelay):
        return _by_grids(_OfSensitivity(system), upper)
    found = search(_OfSensitivity(system), start, lower=0, upper=upper)
    return Optimum(found.parameters, jnp.asarray(found.abscissa, found.parameters.dtype))


def largest_sensitivity(system: System) -> Float[Array, ""]:
    """Largest sensitivity looked at, per job, for a law that is stable for all."""
    mean = system.delay.mean
    delays = jnp.where(mean > 0, 1 / jnp.where(mean > 0, mean, 1.0), 0.0)
    return LARGEST_GAIN * jnp.maximum(system.common_service_rate, delays) / system.arrival_rate


class _OfSensitivity(eqx.Module):
    """The system with another sensitivity; a module, so that new numbers do not compile again."""

    system: System

    def __call__(self, sensitivity: Float[Array, ""]) -> System:
        return eqx.tree_at(lambda s: s.routing.sensitivity, self.system, sensitivity)


def _by_grids(make_system: _OfSensitivity, upper: float) -> Optimum:
    """The least abscissa between zero and `upper`, by ever finer grids; its roots may have no end.

    It has one minimum there, at zero or with the two real roots that meet: falling before, rising
    after.
    """
    dtype = make_system.system.arrival_rate.dtype
    # Zero is kept, a candidate of its own.
    best = Optimum(*_least(make_system, jnp.zeros(1, dtype))[1:])
    grid = np.linspace(math.log(upper) - LOWEST, math.log(upper), POINTS)
    for _ in range(ZOOMS):
        at, theta, abscissa = _least(make_system, jnp.exp(jnp.asarray(grid, dtype)))
        if abscissa < best.abscissa:
            best = Optimum(theta, abscissa)
        grid = np.linspace(grid[max(int(at) - 1, 0)], grid[min(int(at) + 1, POINTS - 1)], POINTS)
    return best


@eqx.filter_jit
def _least(make_system: _OfSensitivity, thetas: Float[Array, " points"]):
    """Place, sensitivity and abscissa of the least; NaN, where no root is certain, is not it."""
    abscissas = jax.lax.map(lambda theta: rightmost_root(make_system(theta)).real, thetas)
    at = jnp.argmin(jnp.where(jnp.isnan(abscissas), jnp.inf, abscissas))
    return at, thetas[at], abscissas[at]


def _period(frequency: Float[Array, ""]) -> Float[Array, ""]:
    """Of an oscillation, s; infinite where there is none."""
    turns = (frequency > 0) & jnp.isfinite(frequency)
    return jnp.where(turns, 2 * math.pi / jnp.where(turns, frequency, 1.0), jnp.inf)
