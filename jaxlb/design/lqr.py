"""The linear-quadratic rule: the least variance that a bounded effort can buy."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, Bool, Float

from .. import _checks
from ..model import imbalance
from ..model.routing import Logit, WeightedLogit
from ..model.system import System, require_one
from ..stability.domain import flagged, is_valid
from ..stochastic.linear_noise import imbalance_noise
from ..stochastic.lyapunov import lyapunov
from .riccati import best_feedback

# Prices of effort looked at, in units of the square of a job's mean time in the system: from one
# at which the rule is a switch to one that leaves no feedback.
PRICES = 1e-10, 1e6
# Of the logarithm of the price.
STEPS, TOLERANCE = 100, 1e-12


def relay_effort(system: System, scale: Any = 1.0) -> Float[Array, ""]:
    """Largest standard deviation that the difference of two servers' inflows can have, jobs/s, as
    a linear function of what it looks at: that of a switch under normal fluctuations, with two
    servers. 4 lambda scale / sqrt(2 pi)."""
    return 4 * system.arrival_rate * scale / math.sqrt(2 * math.pi)


def lqr(system: System, effort: Any = 0.1, scale: Any = 1.0, decay: Any = 0.0) -> WeightedLogit:
    """The rule of least stationary variance of the imbalance, by linear noise, at a given effort.

    Without a bound on effort no rule is best: the variance falls to zero as gains grow. But the
    inflows cannot differ by more than all there is, so that a rule that is strong for the
    fluctuations there are becomes a switch, and is no better than that.

    **Arguments:** `effort`: standard deviation of the difference of inflows, as a fraction of
    4 lambda scale / sqrt(2 pi), its most: that of a switch under normal fluctuations. In (0, 1).
    `scale`: eta, > 0: relative fluctuations are smaller in a larger system, which may have stronger
    rules. `decay`: 1/s, >= 0: all roots are left of -decay, and the best is over integrals weighted
    by exp(2 decay t) (Anderson and Moore).

    **Returns:** a `WeightedLogit`, differentiable once in the system and the arguments.

    **Raises:** `ValueError` on a bad argument, and where `decay` takes more effort than that.
    Traced, NaN.

    **Accuracy:** effort to 1e-9 (`tests/design/test_lqr.py`); gains as those of
    `jaxlb.design.riccati.best_feedback`.

    **Cost:** some 50 Riccati equations: on one core 4 ms with 2 stages, 11 ms with 10, 0.13 s with
    50 (`experiments/benchmarks/design_costs.py`).

    **Source:** Anderson and Moore (1990), Optimal Control, chapters 2 and 3.
    """
    require_one(system)
    system.require_two_alike()
    system.phase_delay("weights on jobs in transit")
    effort = _checks.positive("effort", effort)
    _checks.require("effort", effort, lambda v: v < 1, "below 1, the effort of a switch")
    scale = _checks.positive("scale", scale)
    decay = _checks.not_negative("decay", decay, "1/s")
    dtype = jnp.result_type(effort, scale, decay, *system.numbers)
    effort, scale, decay = (value.astype(dtype) for value in (effort, scale, decay))
    valid = is_valid(system) & (effort > 0) & (effort < 1) & (scale > 0) & (decay >= 0)
    found = flagged(valid, _bounded, system, effort, scale, decay)
    if _checks.is_concrete(found) and not found.ok:
        raise ValueError(
            f"`decay` must be such that its least effort, {found.least_effort:.3g}, is below "
            f"`effort`, {effort:.3g}, got {decay} 1/s."
        )
    gains = jnp.where(found.ok, found.gains, jnp.nan)
    return WeightedLogit(gains[0] / system.arrival_rate, gains[1:] / gains[0])


class _Bounded(NamedTuple):
    """Gains of x and of each phase, whether there are any; and the least effort there is."""

    gains: Float[Array, " modes"]
    ok: Bool[Array, ""]
    least_effort: Float[Array, ""]


@eqx.filter_jit
def _bounded(system: System, effort: Array, scale: Array, decay: Array) -> _Bounded:
    # The rule's own gain is none of the matrix.
    rest = eqx.tree_at(lambda s: s.routing, system, Logit(jnp.zeros_like(system.arrival_rate)))
    matrix, noise = imbalance.matrix(rest), imbalance_noise(rest)
    delay: Any = system.delay
    control, output = jnp.append(0.0, delay.initial), jnp.zeros(len(matrix)).at[0].set(1.0)
    output = output.astype(matrix.dtype)
    shifted = matrix + decay * jnp.eye(len(matrix), dtype=matrix.dtype)
    unit = (system.delay.mean + 1 / system.common_service_rate) ** 2

    def at(log_price):
        found = best_feedback(shifted, control, output, jnp.exp(log_price) * unit)
        covariance, stable = lyapunov(matrix - jnp.outer(control, found.gains), noise)
        used = jnp.sqrt(scale * (found.gains @ covariance @ found.gains))
        return found, used / relay_effort(system, scale), found.ok & stable

    def excess(log_price):
        _, used, ok = at(log_price)
        return jnp.where(ok, jnp.log(jnp.where(ok, used, 1.0) / effort), 1.0)

    cheap, dear = (jnp.log(jnp.asarray(price, matrix.dtype)) for price in PRICES)
    middle = (cheap + dear) / 2
    between = jax.lax.stop_gradient((excess(cheap) > 0) & (excess(dear) < 0))
    solution = optx.root_find(
        # The solver raises, for a whole batch, where it has no zero.
        lambda log_price, _: jnp.where(between, excess(log_price), middle - log_price),
        optx.Bisection(rtol=TOLERANCE, atol=TOLERANCE),
        middle,
        options={"lower": cheap, "upper": dear},
        max_steps=STEPS,
        throw=False,
    )
    found, _, ok = at(solution.value)
    ok = ok & between & (found.gains[0] > 0)
    return _Bounded(found.gains, ok, at(dear)[1])
