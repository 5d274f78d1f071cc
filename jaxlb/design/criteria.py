"""All criteria of one system, in one table."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .. import _checks
from ..fluid import export
from ..model.delays import AbstractPhaseDelay
from ..model.system import System, require_one
from ..stability import Margins, margins, sensitivity_peak
from ..stochastic import ImbalanceVariance, imbalance_variance
from . import criterion as of
from .criterion import SettlingTime
from .gain_windows import UnstableSensitivities, stable_for_every_sensitivity
from .lqr import relay_effort

# Of the perturbed matrix, in units of the service rate.
RADIUS = 0.1


class Criterion(NamedTuple):
    """One row: its name, value and unit; which way is better, "less" or "more"; whether the value
    can be trusted."""

    name: str
    value: float
    unit: str
    better: str
    valid: bool


class Criteria(eqx.Module):
    """What `criteria` finds: arrays without axes, or with those of a batch.

    - `decay_rate`, `worst_decay_rate`, `pseudospectral_decay_rate`: 1/s; the second over mean
      delays wrong by up to 10 %, the third at radius `service_rate` / 10, NaN without phases.
    - `settling`: a `SettlingTime`.
    - `variance`: an `ImbalanceVariance`, jobs^2, at the scale. `open_variance`: without feedback.
    - `integrated_squared_error`: s. `control_effort`: jobs/s; `relay_effort`: its bound.
    - `margins`: a `Margins`; `sensitivity_peak`: Ms.
    - `unstable`: the unstable windows of sensitivity.
    """

    decay_rate: Float[Array, ""]
    worst_decay_rate: Float[Array, ""]
    pseudospectral_decay_rate: Float[Array, ""]
    settling: SettlingTime
    variance: ImbalanceVariance
    open_variance: Float[Array, ""]
    integrated_squared_error: Float[Array, ""]
    control_effort: Float[Array, ""]
    relay_effort: Float[Array, ""]
    margins: Margins
    sensitivity_peak: Float[Array, ""]
    unstable: UnstableSensitivities

    @property
    def stable(self) -> Bool[Array, "..."]:
        """Whether balance is."""
        return self.decay_rate > 0

    def rows(self) -> list[Criterion]:
        """The table, of one system."""
        stable = bool(self.stable)
        variance, settling = self.variance, self.settling
        trusted = stable and bool(variance.valid) and not bool(self.unstable.conditional)
        relative = variance.variance / self.open_variance
        rows = [
            ("decay rate", self.decay_rate, "1/s", "more", True),
            ("decay rate, delay 10 % off", self.worst_decay_rate, "1/s", "more", True),
            ("decay rate, pseudospectral", self.pseudospectral_decay_rate, "1/s", "more", True),
            ("settling time", settling.value, "s", "less", settling.valid),
            ("distance to its next jump", settling.cliff, "", "more", settling.valid),
            ("stationary variance", variance.variance, "jobs²", "less", trusted),
            ("stationary variance over that without feedback", relative, "", "less", trusted),
            ("integrated squared error", self.integrated_squared_error, "s", "less", stable),
            ("control effort", self.control_effort, "jobs/s", "less", trusted),
            ("control effort over its bound", self.control_effort / self.relay_effort, "", "less",
             trusted),
            ("gain margin", self.margins.gain, "", "more", stable),
            ("phase margin", self.margins.phase, "rad", "more", stable),
            ("delay margin", self.margins.delay, "s", "more", stable),
            ("sensitivity peak", self.sensitivity_peak, "", "less", stable),
        ]  # fmt: skip
        return [
            Criterion(name, float(value), unit, better, bool(np.all(valid)) and not np.isnan(value))
            for name, value, unit, better, valid in rows
        ]

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame, by name (`pip install 'jaxlb[scan]'`)."""
        return export.to_pandas(self.rows())

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(row.name) for row in rows)
        lines = [
            f"{row.name:<{width}}  {row.value:12.5g} {row.unit:<7}"
            + ("" if row.valid else " (not to be trusted)")
            for row in rows
        ]
        return "\n".join(line.rstrip() for line in [*lines, str(self.unstable)])


def criteria(
    system: System, scale: Any = 1.0, *, tolerance: Any = 0.05, horizon: Any = None
) -> Criteria:
    """All criteria of one system: `print(criteria(system))` shows them as a table.

    **Arguments:** `system`: two servers, alike, and a logit rule; a delay with phases, or
    `Deterministic` under `Logit`. `scale`: eta, of variance and effort. `tolerance`, `horizon`: of
    the settling time.

    **Returns:** a `Criteria`; takes `jax.vmap`.

    **Raises:** `ValueError` on a bad argument.

    **Cost:** on one core 0.04 s, 0.14 s with 50 phases, after 20 s of compilation for each number
    of them (`experiments/benchmarks/design_costs.py`).
    """
    require_one(system)
    scale = _checks.positive("scale", scale)
    pseudospectral = jnp.full_like(system.arrival_rate, jnp.nan)
    if isinstance(system.delay, AbstractPhaseDelay):
        radius = RADIUS * system.common_service_rate
        pseudospectral = of.pseudospectral_decay_rate(system, radius)
    return Criteria(
        decay_rate=of.decay_rate(system),
        worst_decay_rate=of.worst_decay_rate(system),
        pseudospectral_decay_rate=pseudospectral,
        settling=of.settling_time(system, tolerance=tolerance, horizon=horizon),
        variance=imbalance_variance(system, scale),
        open_variance=2 * scale * system.offered_load,
        integrated_squared_error=of.integrated_squared_error(system),
        control_effort=of.control_effort(system, scale),
        relay_effort=relay_effort(system, scale),
        margins=margins(system),
        sensitivity_peak=sensitivity_peak(system).value,
        unstable=stable_for_every_sensitivity(system),
    )
