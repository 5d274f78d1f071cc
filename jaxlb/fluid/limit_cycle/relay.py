"""The limit of a rule that always sends to the server of less load: infinite sensitivity.

While one load is larger all jobs go to the other server, so that between two switches the inflow is
constant and everything is linear. The cycle switches each half period.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ... import _exponential
from ..._elimination import solve
from ...model import imbalance
from ...model.delays import AbstractPhaseDelay, Deterministic
from ...model.system import System, require_one
from ...stability import critical_sensitivity, hopf_frequency
from ...stability.domain import flagged, is_valid

NEWTON_STEPS, SAMPLES = 12, 256


class RelayCycle(eqx.Module):
    """The cycle that a limit cycle becomes as the sensitivity grows.

    - `exists`: whether balance can lose stability at all. Without, the amplitude is zero.
    - `amplitude`: the largest |q_1 - q_2|, jobs per unit of scale. `period`: s.
    - `valid`: whether the cycle exists and was found. Else both are NaN: a rule that counts jobs as
      soon as they are sent may switch without end.
    """

    exists: Bool[Array, ""]
    amplitude: Float[Array, ""]
    period: Float[Array, ""]
    valid: Bool[Array, ""]


def relay_limit(system: System) -> RelayCycle:
    """The limit cycle as the sensitivity goes to infinity; the rule's own is not used.

    **Arguments:** `system`: two servers of one service rate, a logit rule, and a delay with phases
    or `Deterministic`. A fixed delay has a closed form: the period is
    2 D + (2 / mu) log(2 - e^(-mu D)), the amplitude (2 lambda / mu) (1 - e^(-mu D)). With phases
    half the period is a root of one equation in the exponential of a matrix, found by Newton's
    method from half the period at the Hopf point.

    **Returns:** a `RelayCycle`; differentiable once in every number of the system.

    **Accuracy:** 1e-12, relative, against 40-digit arithmetic with 2 to 50 stages
    (`tests/fluid/test_relay.py`).

    **Raises:** `ValueError` on a bad argument, or where the difference system is not closed.

    **Cost:** O(phases^3).

    **Source:** Tsypkin (1984), Relay Control Systems.
    """
    require_one(system)
    imbalance.require_closed(system)
    if not isinstance(system.delay, AbstractPhaseDelay | Deterministic):
        raise ValueError(
            f"`delay` must be Deterministic or have phases here, got {type(system.delay).__name__}."
        )
    return _relay_limit(system)


@eqx.filter_jit
def _relay_limit(system: System) -> RelayCycle:
    critical, frequency = critical_sensitivity(system), hopf_frequency(system)
    exists = is_valid(system) & jnp.isfinite(critical) & (frequency > 0)
    by = _fixed if isinstance(system.delay, Deterministic) else _in_phases
    amplitude, period, valid = flagged(exists, by, system, frequency)
    amplitude, period, valid = flagged(valid, lambda *found: found, amplitude, period, valid)
    amplitude = jnp.where(exists | ~is_valid(system), amplitude, 0.0)
    return RelayCycle(exists, amplitude, period, valid)


def _fixed(system: System, _):
    service_rate, delay = system.common_service_rate, system.delay.mean
    left = -jnp.expm1(-service_rate * delay)
    period = 2 * (delay + jnp.log1p(left) / service_rate)
    return 2 * system.arrival_rate / service_rate * left, period, jnp.ones((), bool)


def _in_phases(system: System, frequency):
    """With one job's generator Q, phases then service, the difference m of jobs obeys
    m' = m Q - 2 lambda start while the first load is larger."""
    generator, start, weights = _loop(system)
    # Where m would settle.
    rest = solve(generator.T, 2 * system.arrival_rate * start)

    def switch(half):
        """m at a switch, and its derivative in half the period, if m is -m half a period later."""
        stay = _exponential.of_generator(half * generator)
        turned = (jnp.eye(len(stay)) + stay).T
        jobs = solve(turned, stay.T @ rest - rest)
        return jobs, solve(turned, stay.T @ (generator.T @ (rest - jobs)))

    def newton(half, slope=None):
        jobs, by_half = switch(half)
        slope = by_half @ weights if slope is None else slope
        return half - jobs @ weights / slope

    half = jnp.pi / frequency
    half, before = jax.lax.fori_loop(
        0, NEWTON_STEPS, lambda _, pair: (newton(pair[0]), pair[0]), (half, half)
    )
    change = jnp.abs(half / before - 1)
    half = jax.lax.stop_gradient(half)
    half = newton(half, jax.lax.stop_gradient(switch(half)[1] @ weights))
    jobs = switch(half)[0]
    amplitude, is_one_sign = _largest(generator, weights, rest, jobs, half)
    found = (change < jnp.finfo(half.dtype).eps ** 0.6) & is_one_sign
    return amplitude, 2 * half, found


def _loop(system: System):
    """Q, where a job starts, and what the rule counts."""
    delay: Any = system.delay
    rule: Any = system.routing
    phases = delay.num_phases
    dtype = jnp.result_type(*system.numbers)
    generator = jnp.zeros((phases + 1, phases + 1), dtype).at[:-1, :-1].set(delay.generator)
    generator = generator.at[:-1, -1].set(delay.exit_rates())
    generator = generator.at[-1, -1].set(-system.common_service_rate)
    start = jnp.zeros(phases + 1, dtype).at[:-1].set(delay.initial)
    one = jnp.eye(phases + 1, dtype=dtype)
    return generator, start, jax.vmap(lambda m: rule.load(m[-1:], m[None, :-1])[0])(one)


def _largest(generator, weights, rest, jobs, half):
    """Largest |x|, and whether the load keeps its sign between switches."""
    held = jax.lax.stop_gradient((generator, weights, rest, jobs, half))
    generator_, weights_, rest_, jobs_, half_ = held
    stay = _exponential.of_generator(half_ / SAMPLES * generator_)
    path = jax.lax.scan(lambda m, _: (m @ stay, m), jobs_ - rest_, length=SAMPLES)[1] + rest_
    load, queue = path @ weights_, path[:, -1]
    time = half_ / SAMPLES * jnp.argmax(jnp.abs(queue))

    def at(time):
        return rest + (jobs - rest) @ _exponential.of_generator(time * generator)

    def polish(_, time):
        speed = (at(time) - rest) @ generator
        return time - speed[-1] / (speed @ generator)[-1]

    time = jax.lax.stop_gradient(jax.lax.fori_loop(0, 3, polish, time))
    return jnp.abs(at(time)[-1]), jnp.all(load[1:] > 0)
