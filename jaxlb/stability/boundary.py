"""Stability boundaries in closed form."""

from jaxtyping import Array, Float

from ..model.delays import Erlang
from ..model.system import System


def two_stage_critical_gain(system: System) -> Float[Array, ""]:
    """Gain lambda * theta at which two stages lose stability: 2 mu^2/gamma + 4 mu + 2 gamma, 1/s.

    Routh-Hurwitz, equations (22) and (23): stable below, unstable above. The rule and the arrival
    rate of `system` are not used.

    **Raises:** `ValueError` unless the delay is `Erlang` with two stages.
    """
    if not (isinstance(system.delay, Erlang) and system.delay.stages == 2):
        raise ValueError(f"`delay` must be Erlang(mean, 2), got {system.delay!r}.")
    stage = system.delay.stage_rate
    service = system.common_service_rate
    return 2 * service**2 / stage + 4 * service + 2 * stage
