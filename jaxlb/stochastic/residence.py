"""When a job that is routed during one step begins service, by steps, for any delay law.

With a constant delay of m + f steps, a job routed at the fraction s of its step begins in step m if
s < 1 - f, else in step m + 1, and is there at the end of it with the chance that its service lasts.
Integrals over s, against 1 - s and s, are elementary; any other law is a mixture of constant ones.
A chain of few phases gives the same numbers by its matrix exponential, without error.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _checks
from ..model.delays import AbstractPhaseDelay, Deterministic, Erlang, NoDelay
from ..model.quantile import QuantileDelay
from ..model.system import System
from .frozen import frozen

# Beyond this many phases a chain is taken as a mixture of constant delays.
MOST_PHASES = 200
NODES = 4096
# Of a gamma law, in standard deviations of its cube root: beyond lie 3e-14.
FARTHEST = 7.5
# Of a law by its quantiles, longer delays are taken as long as the longest.
RARE = 1e-6
MOST_SLOTS = 10**6


class Residence(NamedTuple):
    """Laws of one step.

    - `stay`: chance that a job in service is there at the end of the step.
    - `early`, `late`: time, s, that a unit inflow that falls or rises linearly during the step
      gives to jobs that begin service in this step, the next and so on, and stay to its end.
    """

    stay: Float[Array, " servers"]
    early: Float[Array, "slots servers"]
    late: Float[Array, "slots servers"]


def num_slots(system: System, step_size: Any) -> int:
    """Steps that the longest delay takes, and the one it begins in.

    **Raises:** `ValueError` if the delay or the step is traced, for it fixes a shape; or if there
    are more than a million steps.
    """
    delay = system.delay
    if isinstance(delay, NoDelay):
        return 1
    if not _checks.is_concrete(delay.mean, delay.squared_cv, step_size):
        raise ValueError(
            "`delay` and `step_size` fix the length of an array here, so they must be concrete, "
            "got traced values."
        )
    if isinstance(delay, QuantileDelay):
        longest = float(delay.at(jnp.asarray(1 - RARE, delay.mean.dtype)))
    else:
        mean, squared_cv = float(delay.mean), float(delay.squared_cv)
        longest = mean * (1 - squared_cv / 9 + FARTHEST * math.sqrt(squared_cv) / 3) ** 3
    slots = longest / float(step_size) + 2
    if not slots <= MOST_SLOTS:
        raise ValueError(
            f"`step_size` must be such that the longest delay, {longest:.3g} s, takes at most "
            f"{MOST_SLOTS} steps, got {float(step_size):.3g} s."
        )
    # In quarters of an octave, so that a new number rarely compiles anew.
    unit = 2 ** max(math.floor(math.log2(slots)) - 2, 0)
    return unit * math.ceil(slots / unit)


def residence(system: System, step_size: Float[Array, ""], slots: int) -> Residence:
    """Laws of one step of this length, s > 0; what a delay has beyond the slots is in the last."""
    delay = system.delay
    stay = jnp.exp(-step_size * system.service_rates)
    if isinstance(delay, AbstractPhaseDelay) and delay.num_phases <= MOST_PHASES:
        laws = frozen(system, step_size)

        def next_step(in_step, _):
            return jnp.einsum("sc,scd->sd", in_step, laws.stay), in_step[:, -1]

        def of(in_step):
            in_service = jax.lax.scan(next_step, in_step, None, slots)[1]
            return jnp.maximum(in_service - stay * jnp.pad(in_service[:-1], ((1, 0), (0, 0))), 0.0)

        return Residence(stay, of(laws.early), of(laws.late))
    lengths, weights = _as_constants(delay)

    def of_server(service_rate):
        parts = jax.vmap(lambda length: _constant(length / step_size, service_rate * step_size))
        place, early, late = parts(lengths)
        place = jnp.minimum(place, slots - 1)
        times = step_size * weights[:, None]
        none = jnp.zeros(slots, early.dtype)
        return none.at[place].add(times * early), none.at[place].add(times * late)

    early, late = jax.vmap(of_server, out_axes=1)(system.service_rates)
    return Residence(stay, early, late)


def _constant(length: Float[Array, ""], rate: Float[Array, ""]):
    """For a constant delay, in steps: the two places where jobs begin; early and late of each."""
    whole = jnp.floor(length)
    after = length - whole
    before = 1 - after
    last = jnp.exp(-rate * before)
    both = jnp.stack([_first(before, rate), last * _first(after, rate)])
    late = jnp.stack(
        [_second(before, rate), last * (_second(after, rate) + before * _first(after, rate))]
    )
    place = whole.astype(jnp.int32) + jnp.arange(2)
    return place, jnp.maximum(both - late, 0.0), late


def _first(length, rate):
    """Integral of exp(-rate u) for u from zero to `length`."""
    return -jnp.expm1(-rate * length) / rate


def _second(length, rate):
    """Integral of (length - u) exp(-rate u) for u from zero to `length`."""
    z = rate * length
    few = z < 0.1
    series = jnp.zeros_like(z)
    for k in range(10, -1, -1):
        series = series * -z + 1 / math.factorial(k + 2)
    many = jnp.where(few, 1.0, z)
    return length**2 * jnp.where(few, series, (many + jnp.expm1(-many)) / many**2)


def _as_constants(delay: Any) -> tuple[Float[Array, " nodes"], Float[Array, " nodes"]]:
    """The law as a mixture of constant delays: lengths, s, and weights."""
    if isinstance(delay, Deterministic):
        return delay.mean[None], jnp.ones_like(delay.mean)[None]
    if isinstance(delay, QuantileDelay):
        return delay.rule()
    if isinstance(delay, Erlang):
        # By its density, in the cube root, where it is nearly normal.
        at = FARTHEST * (2 * (np.arange(NODES) + 0.5) / NODES - 1)
        roots = 1 - 1 / (9 * delay.stages) + at / (3 * math.sqrt(delay.stages))
        roots = np.maximum(roots, 1e-6)
        log_density = (3 * delay.stages - 1) * np.log(roots) - delay.stages * (roots**3 - 1)
        weights = np.exp(log_density - log_density.max())
        dtype = delay.mean.dtype
        lengths, weights = jnp.asarray(roots**3, dtype), jnp.asarray(weights / weights.sum(), dtype)
        return delay.mean * lengths, weights
    raise ValueError(
        f"`delay` must be Deterministic, QuantileDelay, Erlang, or of at most {MOST_PHASES} phases "
        f"for this method, got {type(delay).__name__}."
    )
