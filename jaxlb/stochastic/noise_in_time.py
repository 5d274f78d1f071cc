"""Linear noise in time: covariance along the fluid path, spectrum and autocorrelation at rest."""

from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _checks
from .._elimination import solve
from ..model import dynamics, imbalance
from ..model.routing import Logit
from ..model.system import System, require_one
from ..stability.domain import flagged, is_valid
from .linear_noise import event_noise, imbalance_covariance, imbalance_noise

MAX_STEPS = 65536


class TransientNoise(eqx.Module):
    """The fluid limit and the linear noise about it.

    - `times`: s, shape (times,).
    - `jobs`: the fluid limit, per unit of scale, phases then service.
    - `covariance`: of all counts, jobs^2 per unit of scale.
    - `valid`: whether the solver reached the last time, and traced numbers are in their domain;
      where false the values are NaN.
    """

    times: Float[Array, " times"]
    jobs: Float[Array, "times servers compartments"]
    covariance: Float[Array, "times servers compartments servers compartments"]
    valid: Bool[Array, ""]

    @property
    def imbalance(self) -> Float[Array, "... times"]:
        """Variance of Q_1 - Q_2, jobs^2 per unit of scale."""
        queue = self.covariance[..., :, -1, :, -1]
        one, two = queue[..., 0, 0], queue[..., 1, 1]
        return one + two - 2 * queue[..., 0, 1]


def transient_covariance(
    system: System, times: Any, initial: Any = None, *, rtol: Any = None, atol: Any = None
) -> TransientNoise:
    """Mean and covariance of counts from a known start, by linear noise along the fluid path.

    dC/dt = A C + C A' + noise, with A and the noise at the fluid limit, which is solved with it. It
    is exact at sensitivity zero, else right to order one over the scale; past the Hopf point the
    phase of the limit cycle diffuses, the variance grows with time, and soon it is not right.

    **Arguments:** `times`: s, increasing, from 0 on. `initial`: jobs per unit of scale at time
    zero, as in `jaxlb.fluid.solve`; they are known, so the covariance starts at zero. `rtol`,
    `atol`: of the adaptive step, by default 1e-8 in float64 and 1e-6 in float32.

    **Returns:** a `TransientNoise`. Reverse-mode differentiable.

    **Raises:** `ValueError` on a bad argument, or a delay without phases.

    **Accuracy:** of the solver, relative to the largest value, 1e-7 in float64 and 1e-5 in float32
    (`tests/stochastic/test_noise_in_time.py`).

    **Cost:** `diffrax.Tsit5` on (servers (phases + 1))^2 numbers: on one core, over 20 s, 1 ms with
    2 stages, 20 ms with 10, 2 s with 50 (`experiments/stationary_variance.py`).
    """
    require_one(system)
    times = _checks.times("times", times)
    start = dynamics.initial_jobs(system, initial)
    dtype = jnp.result_type(start, times, *system.numbers)
    usual = 1e-8 if jnp.finfo(dtype).eps < 1e-8 else 1e-6
    # Tolerances enter as arrays: as Python numbers each new value would recompile.
    rtol = _checks.positive("rtol", usual if rtol is None else rtol).astype(dtype)
    atol = _checks.positive("atol", usual if atol is None else atol).astype(dtype)
    steps = jnp.diff(times, prepend=0)
    valid = system.valid & jnp.all(_checks.is_not_negative(start))
    valid = valid & jnp.all(jnp.isfinite(times) & (steps >= 0)) & jnp.all(steps[1:] > 0)
    given = times.astype(dtype), start.astype(dtype), rtol, atol
    return flagged(valid, _transient, system, valid, *given)


@eqx.filter_jit
def _transient(system: System, valid, times, start, rtol, atol) -> TransientNoise:
    # Diffrax would raise on times out of order, for the whole batch.
    solved_times = jnp.where(valid, times, jnp.arange(len(times)).astype(times.dtype))
    servers, compartments = start.shape

    def right_side(_, state, system):
        jobs, covariance = state

        def spread(column):
            return jax.jvp(lambda jobs: dynamics.drift(system, jobs), (jobs,), (column,))[1]

        # A times each column of C; C times A' is its transpose.
        half = jax.vmap(jax.vmap(spread, 2, 2), 3, 3)(covariance)
        noise = event_noise(system, jobs)
        same = jnp.eye(servers, dtype=noise.dtype)[:, None, :, None]
        return (
            dynamics.drift(system, jobs),
            half + half.transpose(2, 3, 0, 1) + same * noise[:, :, None, :],
        )

    solution = dfx.diffeqsolve(
        dfx.ODETerm(right_side),
        dfx.Tsit5(),
        t0=jnp.zeros_like(times[0]),
        t1=solved_times[-1],
        dt0=None,
        y0=(start, jnp.zeros((servers, compartments, servers, compartments), start.dtype)),
        args=system,
        saveat=dfx.SaveAt(ts=solved_times),
        stepsize_controller=dfx.PIDController(rtol=rtol, atol=atol),
        max_steps=MAX_STEPS,
        throw=False,
    )
    jobs, covariance = solution.ys  # pyright: ignore
    reached = solution.result == dfx.RESULTS.successful
    return TransientNoise(
        times,
        jnp.where(reached, jobs, jnp.nan),
        jnp.where(reached, covariance, jnp.nan),
        reached,
    )


def noise_spectrum(system: System, frequency: Any) -> Float[Array, ""]:
    """Power spectrum of the imbalance at rest, by linear noise.

    S(w), even in w, with the integral of S over w / (2 pi) the stationary variance. With the
    paper's rule it is

        S(w) = 4 lambda / |i w + mu + lambda theta f(i w)|^2,

    f being the transform of the delay, whatever its law: the jobs under way are in equilibrium
    without feedback, so that only the denominator, equation (17), tells of the delay.

    **Arguments:** `system`: two servers or more, alike; any rule for a delay with phases, any delay
    for `Logit`. `frequency`: rad/s, scalar.

    **Returns:** jobs^2 s per unit of scale; NaN for a rule that does not treat servers alike.
    Differentiable. Past the Hopf point there is no stationary state and S has no meaning.

    **Raises:** `ValueError` on a bad argument.
    """
    require_one(system)
    system.require_two_alike()
    frequency = _checks.finite("frequency", frequency, "rad/s")
    if not isinstance(system.routing, Logit):
        system.phase_delay("the spectrum of this rule")
    valid = is_valid(system) & jnp.isfinite(frequency)
    return flagged(valid, _spectrum, system, frequency)


@eqx.filter_jit
def _spectrum(system: System, frequency: Float[Array, ""]) -> Float[Array, ""]:
    root = jax.lax.complex(jnp.zeros_like(frequency), frequency)
    if isinstance(system.routing, Logit):
        gain = system.arrival_rate * system.routing.sensitivity
        return_difference = root + system.common_service_rate + gain * system.delay.transform(root)
        return 4 * system.arrival_rate / jnp.abs(return_difference) ** 2
    matrix = imbalance.matrix(system)
    identity = jnp.eye(len(matrix), dtype=matrix.dtype)
    # How much of noise in each mode shows in x.
    shows = solve((root * identity - matrix).T, identity[0] + 0 * root)
    noise = imbalance_noise(system)
    parts = shows.real[:, None] * shows.real + shows.imag[:, None] * shows.imag
    return jnp.sum(noise * parts)


def noise_autocorrelation(system: System, lags: Any) -> Float[Array, " lags"]:
    """Autocorrelation of the imbalance at rest, by linear noise: one at lag zero.

    **Arguments:** `system`: two servers or more, alike, and a delay with phases. `lags`: s, shape
    (lags,), of either sign and in any order.

    **Returns:** shape (lags,); NaN, with derivatives of zero, where balance is not stable.

    **Raises:** `ValueError` on a bad argument.

    **Cost:** an exponential of size phases + 1 for each lag.
    """
    require_one(system)
    system.require_two_alike()
    system.phase_delay("the autocorrelation")
    lags = _checks.finite("lags", lags, "s", (None,))
    return flagged(is_valid(system) & jnp.all(jnp.isfinite(lags)), _autocorrelation, system, lags)


@eqx.filter_jit
def _autocorrelation(system: System, lags: Float[Array, " lags"]) -> Float[Array, " lags"]:
    covariance, stable = imbalance_covariance(system)
    matrix = imbalance.matrix(system)
    # Where unstable, a matrix whose powers stay finite, for the derivatives.
    matrix = jnp.where(stable, matrix, -jnp.eye(len(matrix), dtype=matrix.dtype))
    first = covariance[:, 0] / jnp.where(stable, covariance[0, 0], 1.0)

    def at(lag):
        return jnp.sum(jax.scipy.linalg.expm(jnp.abs(lag) * matrix)[0] * first)

    return jnp.where(stable, jax.lax.map(at, lags), jnp.nan)
