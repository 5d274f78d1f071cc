"""The limit cycle of one system: `find`."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Complex, Float, Int

from ... import _checks
from ...model import imbalance
from ...model.delays import AbstractPhaseDelay
from ...model.system import System, require_one
from ...stability import critical_sensitivity, hopf_frequency
from ...stability.domain import flagged, is_valid
from ...stability.residual import hold
from .balance import MOST_STEPS, balance, numbers

# Harmonics and samples of half a period: of a first try, where numbers are traced, and at most.
FIRST, TRACED, MOST = (16, 128), (64, 1024), (512, 131072)
# Of the tail: in roundings, where it is looked at to choose their numbers; for a cycle to be valid.
WANTED, ENOUGH = 500, 1e-6


class LimitCycle(eqx.Module):
    """The limit cycle about balance, in the difference of two servers.

    - `exists`: whether there is one: the sensitivity is beyond the critical one. Without, the
      amplitude is zero, the period and the harmonics are NaN, and derivatives are zero.
    - `amplitude`: the largest |q_1 - q_2|, jobs per unit of scale. `period`: s.
    - `harmonics`: coefficients of y = (x, w_1, ..., w_L), or x alone for a delay without phases,
      at n = 1, 3, 5, ... times the frequency: y = Re sum harmonics e^(i n omega t). `balanced`: how
      many of them the load has; the others follow, for jobs in the first phases have more.
    - `steps`: of Newton's method. `tail`: what is cut off of the load, relative to its first
      harmonic.
    - `valid`: whether the cycle exists, was found, and its tail is below 1e-6.
    """

    exists: Bool[Array, ""]
    amplitude: Float[Array, ""]
    period: Float[Array, ""]
    harmonics: Complex[Array, "modes harmonics"]
    steps: Int[Array, ""]
    tail: Float[Array, ""]
    valid: Bool[Array, ""]
    balanced: int = eqx.field(static=True)

    def imbalance(self, times: Any) -> Float[Array, "times modes"]:
        """y at these times, s; time zero is where the first harmonic of the load has its peak."""
        times = _checks.finite("times", times, "s", (None,))
        return _wave(self.harmonics, 2 * jnp.pi * times / self.period)


def find(system: System, harmonics: int | None = None, samples: int | None = None) -> LimitCycle:
    """The limit cycle of a system past its Hopf point, by harmonic balance.

    **Arguments:** `system`: two servers of one service rate, any delay with a transform, and a
    logit rule. `harmonics`, `samples`: how many odd harmonics there are, and samples of half a
    period; static. By default they are doubled until the tail is below 1e-13, up to 512 and
    131072, or 64 and 1024 where numbers are traced.

    **Returns:** a `LimitCycle`; differentiable once in every number of the system.

    **Accuracy:** amplitude and period within 2e-13 of shooting, relative, and derivatives within
    3e-11, with 2 to 50 stages (`experiments/benchmarks/cycles.py`); 1e-11 and 1e-8 with a
    deterministic delay, and 2e-6 in float32 (`tests/fluid/test_limit_cycle.py`). The tail tells
    where a sharp rule, of many theta times the amplitude, has too few harmonics.

    **Cost:** for each of a batch on one core, in float64: with ten stages 0.2 ms with 16 harmonics
    and 128 samples, 0.4 ms with 32 and 512, 1.4 ms with 64 and 1024. Amplitude and period alone,
    with any number of stages, 0.3 ms with 32 and 512 (`experiments/benchmarks/cycles.py`); their
    derivatives in four parameters 0.4 ms. A first call with new sizes compiles for 4 s
    (`experiments/benchmarks/fluid_costs.py`).

    **Raises:** `ValueError` on a bad argument, or where the difference system is not closed.
    """
    require_one(system)
    imbalance.require_closed(system)
    if (harmonics is None) != (samples is None):
        raise ValueError(
            f"`harmonics` and `samples` must be given both or neither, got {harmonics!r} and "
            f"{samples!r}."
        )
    # Of the Hopf point only the start of Newton's method depends.
    hopf = _hopf_point(hold(system))
    if harmonics is not None:
        harmonics = _checks.integer("harmonics", harmonics, 1)
        samples = _checks.integer("samples", samples, 2 * harmonics)
        return _find(system, *hopf, harmonics, samples)[0]
    if not _checks.is_concrete(system):
        return _find(system, *hopf, *TRACED)[0]
    harmonics, samples = FIRST
    while True:
        found, cut, missed = _find(system, *hopf, harmonics, samples)
        wanted = WANTED * jnp.finfo(cut.dtype).eps
        # Without a cycle they are NaN.
        more = bool(cut > wanted) and harmonics < MOST[0]
        finer = (bool(missed > wanted) or more) and samples < MOST[1]
        if not (more or finer):
            return found
        harmonics, samples = harmonics * (1 + more), samples * (1 + finer)


def exists(system: System) -> Bool[Array, ""]:
    """Whether the sensitivity is beyond a critical one at which balance starts to oscillate."""
    return _hopf_point(system)[0]


@eqx.filter_jit
def _hopf_point(system: System):
    """Whether there is a cycle; the critical sensitivity; the frequency there, rad/s."""
    rule: Any = system.routing
    critical, frequency = critical_sensitivity(system), hopf_frequency(system)
    there = is_valid(system) & (rule.sensitivity > critical) & (frequency > 0)
    return there, critical, frequency


@eqx.filter_jit
def _find(system: System, there, critical, frequency, harmonics: int, samples: int):
    """The cycle, and how much of it is cut off and missed."""
    cycle, cut, missed = flagged(there, _beyond, system, critical, frequency, harmonics, samples)
    amplitude = jnp.where(there | ~is_valid(system), cycle.amplitude, 0.0)
    return eqx.tree_at(lambda cycle: cycle.amplitude, cycle, amplitude), cut, missed


def _beyond(system: System, critical, frequency, harmonics: int, samples: int):
    """Of a system that is beyond its critical sensitivity."""
    rule: Any = system.routing
    found = balance(system, critical / rule.sensitivity, frequency, harmonics, samples)

    def modes(number, bend):
        response = jax.vmap(partial(_modes, system))(1j * found.frequency * number).T
        return -system.arrival_rate * bend * response

    # Apart, for the amplitude needs the first alone.
    number = numbers(len(found.bend))
    first = modes(number[:harmonics], found.bend[:harmonics])
    rest = modes(number[harmonics:], found.bend[harmonics:])
    tail = jnp.maximum(found.cut, found.missed)
    right = (found.steps < MOST_STEPS) & (tail < ENOUGH)
    cycle = LimitCycle(
        jnp.ones((), bool),
        _largest(first[0]),
        2 * jnp.pi / found.frequency,
        jnp.concatenate([first, rest], axis=1),
        found.steps,
        tail,
        right,
        harmonics,
    )
    return cycle, found.cut, found.missed


def _modes(system: System, at):
    """Transforms of x and of each w per unit of the inflow's difference."""
    service = system.delay.transform(at) / (at + system.common_service_rate)
    if isinstance(system.delay, AbstractPhaseDelay):
        return jnp.append(service, system.delay.phase_transform(at))
    return service[None]


def _wave(modes, phase):
    """Re sum of the harmonics at these phases of the first."""
    return (jnp.exp(1j * phase[:, None] * numbers(modes.shape[1])) @ modes.T).real


def _largest(wave):
    """Amplitude of one sum of odd harmonics."""
    count = len(wave)
    phase = jnp.pi * jnp.arange(8 * count) / (8 * count)
    frozen = jax.lax.stop_gradient(wave)
    number = numbers(count)

    def at(phase, order, wave=frozen):
        return (jnp.exp(1j * phase * number) * (1j * number) ** order @ wave).real

    best = phase[jnp.argmax(jnp.abs(jax.vmap(lambda phase: at(phase, 0))(phase)))]
    for _ in range(3):
        best = best - at(best, 1) / at(best, 2)
    # Where it is largest its derivative in time is zero: only the harmonics move it.
    return jnp.abs(at(best, 0, wave))
