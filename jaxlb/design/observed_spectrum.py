"""Stationary variances by frequencies, for rules on the ages of jobs or on a late view.

A job adds phi_x(i w) to the transform of the imbalance, by its time in service, and phi_s(i w) to
that of what is compared, by what it counts while in transit and in service. Without feedback jobs
come at rate 2 lambda, as two independent Poisson processes of opposite sign; so the spectra are
those of shot noise (Campbell): 2 lambda E|phi_x|^2, and likewise for s and for both. Feedback adds
the inflow -kappa s, to which x and s respond by the means G_x and G_s of phi_x and phi_s:

    s = s0 / (1 + kappa G_s),    x = x0 - kappa G_x s,

from those without feedback. E|phi_x|^2 is 2 / (w^2 + mu^2) and G_x is f(i w) / (i w + mu), f being
the transform of the delay.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float

from .._elimination import solve
from ..model.delays import NoDelay
from ..model.system import System
from ..stability.axis import fastest_rate
from .age import ages

# Frequencies, and how far they reach beyond every rate of the system.
POINTS, REACH = 2048, 1e4
# Frequencies at a time.
AT_ONCE = 64
# Ages in each octave: they are wide against neither phases nor a wave that still matters.
PER_OCTAVE = 64
# Most that the loop may turn from one frequency to the next, rad.
TURN = 1.5


class Load(NamedTuple):
    """Of what a job counts in the comparison: G_s, E[phi_x conj(phi_s)] and E|phi_s|^2."""

    mean: Complex[Array, ""]
    shared: Complex[Array, ""]
    square: Float[Array, ""]


Loads = Callable[[Float[Array, ""], Complex[Array, ""], Float[Array, ""]], Load]
Variances = tuple[Float[Array, ""], Float[Array, ""]]


@eqx.filter_jit
def of_late_view(system: System) -> Variances:
    """Variances per unit of scale, of the imbalance and of what is compared, with `LateLogit`."""
    routing: Any = system.routing

    def load(frequency, response, square):
        late = jnp.exp(-1j * frequency * routing.lag)
        return Load(late * response, jnp.conj(late) * square, square)

    return _variances(system, load, 2 * system.arrival_rate / system.common_service_rate)


@eqx.filter_jit
def of_ages(system: System) -> Variances:
    """The same with `AgeLogit`.

    With p(t) the chances of phases at age t, a(t) the weight, g = (i w - G)^-1 1 and
    h = (i w - G)^-1 exit, integrals over the time in transit become, by parts, sums over changes
    of the weight:

        mean of phi_a = a(0) p(0).g + sum of da exp(-i w t) p(t).g,
        E[phi_x conj(phi_a)] = (integral of a p).h / (i w + mu),
        E|phi_a|^2 = 2 Re((integral of a^2 p).g + sum of da exp(-i w t) p(t).g conj(Phi(t))),

    Phi(t) being the integral of a exp(-i w t) up to t.
    """
    delay: Any = system.delay
    routing: Any = system.routing
    law = ages(delay, PER_OCTAVE)
    weight = jax.vmap(routing.weight)(law.ages).astype(law.ages.dtype)
    there = law.left[:, None] * law.phase
    half, middle = jnp.diff(law.ages) / 2, (law.ages[1:] + law.ages[:-1]) / 2
    change = jnp.diff(weight)
    identity = jnp.eye(delay.num_phases, dtype=there.dtype)
    # Times spent in each phase while in each cell of ages.
    spent = solve(-delay.generator.T, -jnp.diff(there, axis=0).T).T
    level = (weight[1:] + weight[:-1]) / 2
    once, twice = level @ spent, (level**2 + change**2 / 12) @ spent

    def load(frequency, response, square):
        root = 1j * frequency
        service = root + system.common_service_rate
        stays = solve(root * identity - delay.generator, jnp.ones_like(there[0]))
        leaves = 1 - root * stays
        # The wave on average over each cell.
        wave = jnp.exp(-root * middle) * jnp.sinc(frequency * half / jnp.pi)
        held = there @ stays
        held = (held[1:] + held[:-1]) / 2
        turned = change * wave
        total = jnp.cumsum(turned) - turned / 2
        so_far = jnp.conj(weight[0] + total) * wave - level
        mean = weight[0] * (there[0] @ stays) + turned @ held
        own = 2 * (twice @ stays + (change * so_far) @ held / jnp.conj(root)).real
        shared = (once @ leaves) / service
        return Load(response + mean, square + shared, square + 2 * shared.real + own)

    at_rest = 1 / system.common_service_rate + jnp.sum(twice)
    return _variances(system, load, 2 * system.arrival_rate * at_rest)


def _variances(system: System, load: Loads, load_at_rest: Float[Array, ""]) -> Variances:
    """Variances by Parseval: those without feedback, and integrals of what feedback changes."""
    routing: Any = system.routing
    rate, arrivals = system.common_service_rate, 2 * system.arrival_rate
    gain = system.arrival_rate * routing.sensitivity
    frequency, step = _frequencies(system, gain)

    def at(frequency):
        root = 1j * frequency
        response = system.delay.transform(root) / (root + rate)
        square = 2 / (frequency**2 + rate**2)
        found = load(frequency, response, square)
        back = 1 + gain * found.mean
        through = gain * response / back
        of_queue = jnp.abs(through) ** 2 * found.square
        of_queue = of_queue - 2 * (through * jnp.conj(found.shared)).real
        return of_queue, found.square * (1 / jnp.abs(back) ** 2 - 1), back

    of_queue, of_load, back = jax.lax.map(at, frequency, batch_size=AT_ONCE)
    weight = arrivals * step / jnp.pi
    found = arrivals / rate + weight @ of_queue, load_at_rest + weight @ of_load
    turns = jnp.angle(back[1:] / back[:-1])
    # All the way from zero frequency, where it is real: the number of roots to the right.
    stable = (jnp.abs(jnp.angle(back[0]) + jnp.sum(turns)) < 1) & (back[0].real > 0)
    resolved = jnp.max(jnp.abs(turns)) < TURN
    return jax.tree.map(
        lambda value: jnp.where(resolved, jnp.where(stable, value, jnp.inf), jnp.nan), found
    )


def _frequencies(system: System, gain: Array) -> tuple[Array, Array]:
    """Frequencies above zero, rad/s, and the step that each stands for.

    Equal steps in arcsinh, from half a step on: integrals of even functions converge like a power.
    """
    rate, delay = system.common_service_rate, system.delay
    slow, fast = rate, jnp.maximum(rate, gain)
    if not isinstance(delay, NoDelay):
        slow, fast = jnp.minimum(slow, 1 / delay.mean), jnp.maximum(fast, fastest_rate(delay))
    top = jnp.arcsinh(REACH * fast / slow)
    at = (jnp.arange(POINTS, dtype=top.dtype) + 0.5) * top / POINTS
    found = slow * jnp.sinh(at), slow * jnp.cosh(at) * top / POINTS
    return jax.lax.stop_gradient(found)
