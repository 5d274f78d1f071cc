"""Statistical linearisation: the variance of the imbalance near the Hopf point and past it.

Linear noise takes the gain lambda theta that the rule has at balance. But the rule saturates: under
a fluctuation of the load its gain is less on average (`jaxlb.stochastic.saturation`), so that the
fluctuation stays bounded where linear noise has it grow. With V(k) the linear-noise variance of the
load's difference at gain k, the gain kept, r, solves

    r = remaining_gain(theta sqrt(V(lambda theta r) / eta)).

The right side is continuous and falls to zero where V has no value, so there is a solution in
[0, 1], always; more than one is possible where balance is stable in more than one window of gains.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _checks
from ..model import imbalance
from ..model.delays import AbstractPhaseDelay
from ..model.routing import AbstractLogit
from ..model.system import System, require_one
from ..stability.domain import flagged, is_valid
from .few_stages import closed_form, has_closed_form
from .linear_noise import imbalance_noise
from .lyapunov import lyapunov
from .saturation import remaining_gain

# Gains looked at, in equal ratios, and fixed points kept.
POINTS = 64
KEPT = 5
# A fixed point takes a dozen steps; a bisection alone would take as many as these.
MOST_STEPS = 64
# Gain kept below which saturation is strong.
TRUSTED = 0.5

# From a gain to the variance of x, that of the load, and whether balance is stable.
Variances = Callable[[Float[Array, ""]], tuple[Array, Array, Array]]


class ImbalanceVariance(eqx.Module):
    """Stationary variance of the imbalance Q_1 - Q_2, jobs^2.

    - `variance`: by statistical linearisation, at the fixed point of least gain, which has the
      largest fluctuation of the load.
    - `linear_noise`: by linear noise; infinite, with derivatives of zero, where balance is not
      stable.
    - `effective_gain`: lambda theta under the fluctuation, 1/s, at the fixed point of `variance`.
    - `fixed_points`: the effective gains of all fixed points, 1/s, increasing, padded by NaN to
      shape (5,).
    - `variances`: the variance at each of these.
    - `valid`: whether `variance` can be trusted: balance is stable, there is one fixed point, and
      half of the gain or more is left.
    """

    variance: Float[Array, ""]
    linear_noise: Float[Array, ""]
    effective_gain: Float[Array, ""]
    fixed_points: Float[Array, " kept"]
    variances: Float[Array, " kept"]
    valid: Bool[Array, ""]


def imbalance_variance(system: System, scale: Any = 1.0) -> ImbalanceVariance:
    """Stationary variance of the imbalance of any two servers, by statistical linearisation.

    **Arguments:** `system`: two servers or more, alike, a delay with phases, and a logit rule;
    or a `Deterministic` delay and `Logit`. `scale`: eta, > 0.

    **Returns:** an `ImbalanceVariance`, with finite values on both sides of the Hopf point.
    Differentiable once. Past the Hopf point there is a limit cycle, the imbalance is far from
    normal, `valid` is false and the figure is too low: harmonic balance is the better one there.
    With more than one fixed point a path may stay about either for long.

    **Raises:** `ValueError` on a bad argument.

    **Accuracy:** where `valid`, within a tenth of the exact variance, mostly too low; for small
    systems within 2 % (`tests/stochastic/test_statistical_linearisation.py`,
    `experiments/stationary_variance.py`). Past the Hopf point it is a fifth to a third too low, and
    more just past it with many stages. The fixed point itself is right to 1e-8, and to 1e-3 in
    float32. Two fixed points between two of the 64 gains looked at are missed.

    **Cost:** 64 Lyapunov equations, and a dozen for each of five places: on one core, below the
    Hopf point, 2 ms with 10 stages, 0.04 s with 50; 0.1 ms with one and two by their closed forms
    (`experiments/stationary_variance.py`). The gradient comes at a fraction of that.

    **Source:** Booton (1954), IRE Trans. Circuit Theory 1(1), 9-18, for the method.
    """
    require_one(system)
    system.require_two_alike()
    if not has_closed_form(system):
        system.phase_delay("a stationary variance")
    if not isinstance(system.routing, AbstractLogit):
        raise ValueError(
            f"`routing` must be a logit rule here, got {type(system.routing).__name__}."
        )
    scale = _checks.positive("scale", scale)
    valid = is_valid(system) & _checks.is_positive(scale)
    return flagged(valid, _imbalance_variance, system, scale)


@eqx.filter_jit
def _imbalance_variance(system: System, scale: Float[Array, ""]) -> ImbalanceVariance:
    # One dtype throughout, for the loop must carry what it began with.
    dtype = jnp.result_type(scale, *system.numbers)
    system, scale = jax.tree.map(
        lambda leaf: leaf.astype(dtype) if eqx.is_inexact_array(leaf) else leaf, (system, scale)
    )
    sensitivity = system.routing.sensitivity  # pyright: ignore
    gain = system.arrival_rate * sensitivity
    variances = _variances(system)

    def at(kept):
        """Variances of x and of the load, and r's right side less its left."""
        of_queue, of_load, stable = variances(gain * kept)
        spread = sensitivity * jnp.sqrt(jnp.where(stable, of_load, 1.0) / scale)
        return of_queue, jnp.where(stable, remaining_gain(spread, system.num_servers), 0.0) - kept

    least = _least_kept(system, gain, scale)
    kept, there = _solve(lambda kept: at(kept)[1], jax.lax.stop_gradient(least))

    def polished(kept):
        kept = jax.lax.stop_gradient(kept)
        (of_queue, excess), slopes = jax.jvp(at, (kept,), (jnp.ones_like(kept),))
        slope, fall = jax.lax.stop_gradient(slopes)
        # Along the slopes, not at the point moved to: near the Hopf point, where the variance is
        # steep, rounding of the place and of the variance cancel, and derivatives are the implicit
        # function's.
        move = -excess / jnp.where(fall == 0, -1.0, fall)
        return scale * (of_queue + slope * move), gain * (kept + move)

    found, gains = jax.lax.map(polished, kept)
    linear, _, stable = variances(gain)
    trusted = stable & (kept[0] >= TRUSTED) & ~there[1]
    return ImbalanceVariance(
        found[0],
        jnp.where(stable, scale * linear, jnp.inf),
        gains[0],
        jnp.where(there, gains, jnp.nan),
        jnp.where(there, found, jnp.nan),
        trusted,
    )


def _variances(system: System) -> Variances:
    if has_closed_form(system):

        def by_formula(gain):
            variance, stable = closed_form(system, gain)
            return variance, variance, stable

        return by_formula
    loop_open, loop_closed = (imbalance.matrix(_of_gain(system, gain)) for gain in (0.0, 1.0))
    noise, load = imbalance_noise(system), _load(system)

    def by_equation(gain):
        covariance, stable = lyapunov(loop_open + gain * (loop_closed - loop_open), noise)
        of_load = jnp.sum(load[:, None] * covariance * load)
        return covariance[0, 0], of_load, stable

    return by_equation


def _of_gain(system: System, gain: float) -> System:
    sensitivity = gain / system.arrival_rate
    return eqx.tree_at(lambda system: system.routing.sensitivity, system, sensitivity)


def _load(system: System) -> Float[Array, " modes"]:
    """The difference of loads is this times y."""
    routing = system.routing
    assert isinstance(routing, AbstractLogit)
    origin = jnp.zeros(system.num_phases + 1, system.arrival_rate.dtype)
    return jax.grad(lambda y: routing.load(y[:1], y[None, 1:])[0])(origin)


def _least_kept(system: System, gain, scale) -> Float[Array, ""]:
    """A share of the gain below which there is no fixed point.

    At gains k up to half of the small-gain bound, below which |k G| < 1 at every frequency, the
    loop amplifies by two at most, so the load's variance is at most four times that without
    feedback.
    """
    delay, weight = system.delay, jnp.abs(_load(system))
    time = (1 / system.common_service_rate)[None]
    if isinstance(delay, AbstractPhaseDelay):
        time = jnp.append(time, delay.occupancy())
    open_variance = 2 * system.arrival_rate * jnp.sum(weight**2 * time)
    spread = system.routing.sensitivity * jnp.sqrt(4 * open_variance / scale)  # pyright: ignore
    small_gain = 2 * gain * jnp.sum(weight * time)
    return jnp.minimum(remaining_gain(spread, system.num_servers), 1 / jnp.maximum(small_gain, 1.0))


def _solve(excess: Callable[[Array], Array], least) -> tuple[Array, Array]:
    """Zeros of `excess` from `least` to one, in order, and which of the `KEPT` places have one."""
    points = least ** jnp.linspace(1.0, 0.0, POINTS, dtype=least.dtype)
    # One after the other: a batch would wait at each for the slowest.
    values = jax.lax.map(excess, points)
    # By its bounds, whatever rounding makes of them.
    positive = (values > 0).at[0].set(True).at[-1].set(False)
    last = POINTS - 1
    (cell,) = jnp.nonzero(positive[1:] != positive[:-1], size=KEPT, fill_value=last)
    there, after = cell < last, jnp.minimum(cell + 1, last)
    # A place without a zero repeats the first one.
    cell, after = jnp.where(there, cell, cell[0]), jnp.where(there, after, after[0])
    ends = points[cell], points[after], values[cell], values[after]
    return jax.lax.map(lambda ends: _zero(excess, *ends), ends), there


def _zero(excess: Callable[[Array], Array], low, high, at_low, at_high) -> Float[Array, ""]:
    """The zero between two points, where `excess` is not negative (Chandrupatla's method)."""
    eps = jnp.finfo(low.dtype).eps

    def go_on(state):
        k, _, (new, old, _), (at_new, _, _) = state
        return (k < MOST_STEPS) & (jnp.abs(new - old) > 4 * eps * jnp.abs(new)) & (at_new != 0)

    def step(state):
        k, part, (new, old, _), (at_new, at_old, _) = state
        x = new + part * (old - new)
        at_x = excess(x)
        same = (at_x > 0) == (at_new > 0)
        before, at_before = jnp.where(same, new, old), jnp.where(same, at_new, at_old)
        old, at_old = jnp.where(same, old, new), jnp.where(same, at_old, at_new)
        points, values = (x, old, before), (at_x, at_old, at_before)
        narrow = 2 * eps * jnp.abs(x) / jnp.maximum(jnp.abs(x - old), eps * jnp.abs(x))
        part = jnp.clip(_quadratic(points, values), narrow, 1 - narrow)
        return k + 1, part, points, values

    start = 0, jnp.asarray(0.5, low.dtype), (low, high, low), (at_low, at_high, at_low)
    _, _, (new, old, _), (at_new, _, _) = jax.lax.while_loop(go_on, step, start)
    return jnp.where(at_new >= 0, new, old)


def _quadratic(points, values) -> Float[Array, ""]:
    """Part of the way from the first point to the second, by interpolation where that is safe."""
    (a, b, c), (at_a, at_b, at_c) = points, values
    xi = (a - b) / jnp.where(c == b, 1.0, c - b)
    phi = (at_a - at_b) / jnp.where(at_c == at_b, 1.0, at_c - at_b)
    safe = (phi**2 < xi) & ((1 - phi) ** 2 < 1 - xi) & (c != b) & (at_c != at_b) & (at_c != at_a)
    ab = jnp.where(safe, at_b - at_a, 1.0)
    ac, bc = jnp.where(safe, at_c - at_a, 1.0), jnp.where(safe, at_c - at_b, 1.0)
    ratio = (c - a) / jnp.where(b == a, 1.0, b - a)
    part = ratio * at_a / ac * at_b / bc - at_a / ab * at_c / bc
    return jnp.where(safe, part, 0.5)
