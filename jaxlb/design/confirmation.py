"""A prediction tried: the stationary variance of the imbalance on exact paths."""

from typing import Any, NamedTuple

import numpy as np

from .. import _checks
from ..model.memory import AbstractPast
from ..model.system import System, require_one
from ..stochastic import imbalance_variance, simulate
from .gain_windows import stable_for_every_sensitivity
from .observed_noise import observed_noise

# Mean times of a job in the system before the first record and between two, and by default all.
BURN_IN, SPACING, DURATION = 10.0, 0.25, 200.0
# Standard errors within which a prediction is confirmed.
CONFIRMED = 3.0


class Confirmation(NamedTuple):
    """A variance on exact paths and its prediction.

    - `variance`, `standard_error`: jobs^2, of Q_1 - Q_2 at rest; the error is that of the mean
      over independent paths.
    - `predicted`: by statistical linearisation or, for a rule with a memory, linear noise.
    - `z`: standard errors from the prediction to what was found. `confirmed`: within three.
    - `trusted`: whether the prediction itself claims to hold: it is valid where it is made, and the
      rule is not stable only conditionally.
    """

    variance: float
    standard_error: float
    predicted: float
    z: float
    confirmed: bool
    trusted: bool


def confirm(
    system: System,
    key: Any,
    scale: Any = 100.0,
    *,
    replicas: int = 32,
    duration: Any = None,
    progress: bool = False,
) -> Confirmation:
    """The stationary variance of the imbalance on exact paths, against its prediction.

    Servers are alike, so that the mean imbalance is zero and its square has the variance as its
    mean; that is averaged over each path, from ten mean times of a job in the system on, and the
    paths are independent.

    **Arguments:** `key`: a JAX random key. `replicas`: paths, two or more. `duration`: s, of each;
    by default 200 mean times of a job in the system. With a slow decay it should be many decay
    times.

    **Returns:** a `Confirmation`.

    **Raises:** `ValueError` on a bad argument, or where a path could not be drawn.

    **Cost:** that of exact paths: `jaxlb.stochastic.simulate`.
    """
    require_one(system)
    replicas = _checks.integer("replicas", replicas, 2)
    unit = float(system.delay.mean + 1 / np.min(system.service_rates))
    if duration is not None:
        unit = float(_checks.positive("duration", duration, "s")) / DURATION
    times = unit * np.arange(BURN_IN, BURN_IN + DURATION, SPACING)
    # Balance, but for the jobs in transit, which come soon.
    rest = np.full(system.num_servers, np.round(float(scale * system.offered_load)))
    paths = simulate(system, key, times, scale, replicas, rest, progress=progress)
    paths.check()
    queue = np.asarray(paths.queue, float)
    squares = ((queue[..., 0] - queue[..., 1]) ** 2).mean(axis=1)
    variance = float(squares.mean())
    error = float(squares.std(ddof=1) / np.sqrt(replicas))
    predicted, trusted = _predicted(system, scale)
    z = (variance - predicted) / error
    return Confirmation(variance, error, predicted, z, abs(z) <= CONFIRMED, trusted)


def _predicted(system: System, scale: Any) -> tuple[float, bool]:
    """Variance, jobs^2, and whether it claims to hold."""
    if isinstance(system.routing, AbstractPast):
        found = observed_noise(system, scale)
        return float(found.variance), bool(found.stable)
    found = imbalance_variance(system, scale)
    conditional = stable_for_every_sensitivity(system).conditional
    return float(found.variance), bool(found.valid & ~conditional)
