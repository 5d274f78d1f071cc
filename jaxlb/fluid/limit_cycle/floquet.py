"""Floquet multipliers of a limit cycle, by the Hill determinant.

A small change of the load near the cycle obeys the loop with the bend's slope, 1 / cosh(eta / 2)^2,
in place of the bend. That has half the period, with coefficients P_k at even k, so that a change
e^(s t) times the sum of b_n e^(i n omega t) over odd n solves

    b_n + G(s + i n omega) (sum over m of P_(n - m) b_m) = 0,    n = ..., -3, -1, 1, 3, ...

The determinant is a function of z = e^(-s T / 2), T the period, and zero where -1 / z is a
multiplier of half a period: z = 1 is the shift in time. Times one factor for each pole of G it is
an entire function of z, whose Taylor coefficients come from values on a circle; the zeros of that
polynomial start Newton's method.
"""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Complex, Float

from ... import _checks, _exponential
from ..._elimination import log_determinant, solve
from ...model import imbalance
from ...model.delays import AbstractPhaseDelay, Erlang, MixedErlang
from ...model.system import System, require_one
from ...stability import open_loop
from .balance import numbers, slope_of_bend
from .cycle import LimitCycle

# Values on the circle; harmonics on either side in the determinant, and further ones by its
# diagonal alone; samples of the bend's slope for each harmonic; most harmonics for Newton's method.
POINTS, HARMONICS, DIAGONAL, SAMPLES, MOST = 32, 64, 2048, 256, 128
# Smallest multiplier that is told from zero, with phases and without: then the gain falls slowly
# with frequency, and the more so the wider the circle. It is a little within the circle.
LEAST, LEAST_WITHOUT_PHASES, MARGIN = 2e-3, 0.1, 1.3
ABERTH_STEPS, NEWTON_STEPS = 60, 8


class Floquet(NamedTuple):
    """Floquet multipliers of a cycle, but for the one of a shift in time, which is 1.

    - `multipliers`: by falling modulus; zero where it is below 2e-3, or 0.1 if the delay has no
      phases, and where there is none.
    - `valid`: whether the cycle is valid and the multipliers were found.
    """

    multipliers: Complex[Array, " count"]
    valid: Bool[Array, ""]

    @property
    def is_stable(self) -> Bool[Array, ""]:
        """Whether the cycle attracts what is near it."""
        return self.valid & (jnp.abs(self.multipliers[0]) < 1)


def floquet(system: System, cycle: LimitCycle, count: int = 1) -> Floquet:
    """The largest multipliers of a cycle that `find` found: what a period leaves of a disturbance.

    **Arguments:** `system`, `cycle`: of one `find`. `count`: static.

    **Returns:** a `Floquet`; differentiable once in the numbers of `system` and `cycle`.

    **Accuracy:** 1e-9, relative, against the monodromy matrix by DOP853 at 1e-12, with 2 to 10
    stages (`tests/fluid/test_floquet.py`).

    **Cost:** 10 ms on one core for a cycle of 16 harmonics, and 22 ms for each of a batch with 32;
    compiles for 3 to 7 s (`experiments/benchmarks/fluid_costs.py`).

    **Raises:** `ValueError` on a bad argument, or where the difference system is not closed.
    """
    require_one(system)
    _checks.kind("cycle", cycle, LimitCycle)
    imbalance.require_closed(system)
    return _floquet(system, cycle, _checks.integer("count", count, 1))


@eqx.filter_jit
def _floquet(system: System, cycle: LimitCycle, count: int) -> Floquet:
    hill = _hill(system, cycle)
    starts = _zeros(jax.lax.stop_gradient(hill), count)
    there = jnp.abs(starts) < _reach(system)
    # From where there is none, anything finite will do.
    zeros, near = jax.vmap(partial(_follow, hill))(jnp.where(there, starts, 2.0))
    multipliers = jnp.where(there, zeros**-2, 0.0)
    valid = cycle.valid & jnp.all(near | ~there)
    return Floquet(jnp.where(cycle.valid, multipliers, jnp.nan), valid)


class _Hill(eqx.Module):
    """What the determinant is made of. `half`: half a period, s. `slopes`: P_0, P_2, ..., P_-2."""

    system: System
    half: Float[Array, ""]
    slopes: Complex[Array, " samples"]
    harmonics: int = eqx.field(static=True)


def _hill(system: System, cycle: LimitCycle) -> _Hill:
    rule: Any = system.routing
    # Weights are real: of a sum of real and imaginary parts.
    balanced = _parts(cycle.harmonics[:, : cycle.balanced])
    parts = (rule.load(part[:1], part[None, 1:])[0] for part in balanced)
    load = rule.sensitivity * jax.lax.complex(*parts)
    slopes = slope_of_bend(load, SAMPLES * max(HARMONICS, len(load)))
    return _Hill(system, cycle.period / 2, slopes, min(max(HARMONICS, len(load)), MOST))


def _reach(system: System) -> float:
    """Largest modulus of z that is looked at; -1 / z is a multiplier of half a period."""
    has_phases = isinstance(system.delay, AbstractPhaseDelay)
    return (LEAST if has_phases else LEAST_WITHOUT_PHASES) ** -0.5


def _parts(value: Complex[Array, "..."]):
    return value.real, value.imag


def _gains(hill: _Hill, log_z, number: np.ndarray):
    """G(s + i n omega)."""
    shift = jax.lax.complex(jnp.zeros(len(number), hill.half.dtype), jnp.pi * number / hill.half)
    return jax.vmap(partial(open_loop, hill.system))(shift - log_z / hill.half)


def _matrix(hill: _Hill, log_z, harmonics: int):
    odd = numbers(harmonics)
    number = np.append(-odd[::-1], odd)
    apart = (number[:, None] - number) // 2 % len(hill.slopes)
    gains = _gains(hill, log_z, number)
    return jnp.eye(len(number), dtype=gains.dtype) + gains[:, None] * hill.slopes[apart]


def _zeros(hill: _Hill, count: int):
    """Zeros z within the circle but z = 1, to a few digits, by rising modulus."""
    radius = MARGIN * _reach(hill.system)
    turn = np.pi * (2 * np.arange(POINTS // 2) + 1) / POINTS
    values = jax.vmap(partial(_entire, hill))(jnp.log(radius) + 1j * turn)
    # Coefficients in z / radius, real; divided by 1 - z from the last on.
    power = np.arange(POINTS)
    coefficients = 2 / POINTS * jnp.real(np.exp(-1j * np.outer(power, turn)) @ values)
    after = power[None, 1:] - power[:-1, None]
    above = jnp.asarray(np.where(after > 0, radius ** -np.maximum(after, 0.0), 0))
    zeros = _roots(-above @ coefficients[1:])
    return radius * zeros[jnp.argsort(jnp.abs(zeros))[:count]]


def _entire(hill: _Hill, log_z):
    """The determinant times its factors for poles."""
    log = log_determinant(_matrix(hill, log_z, HARMONICS))
    beyond = np.arange(2 * HARMONICS + 1, 2 * DIAGONAL, 2)
    log += jnp.sum(jnp.log1p(_gains(hill, log_z, np.append(-beyond, beyond)) * hill.slopes[0]))
    service, delay = hill.system.common_service_rate, hill.system.delay
    log += jnp.log1p(jnp.exp(log_z - service * hill.half))
    if isinstance(delay, Erlang | MixedErlang):
        log += delay.num_phases * jnp.log1p(jnp.exp(log_z - delay.stage_rate * hill.half))
    elif isinstance(delay, AbstractPhaseDelay):
        law: Any = delay
        stay = _exponential.of_generator(hill.half * law.generator)
        log += log_determinant(jnp.eye(len(stay)) + jnp.exp(log_z) * stay)
    return jnp.exp(log)


def _roots(coefficients: Float[Array, " terms"]) -> Complex[Array, " roots"]:
    """All roots of a polynomial, constant term first, by Aberth's method."""
    degree = len(coefficients) - 1
    one = jnp.ones((), jnp.result_type(coefficients, jnp.complex64))

    def step(_, roots):
        value, slope = jax.vmap(
            lambda z: jax.jvp(lambda z: jnp.polyval(coefficients[::-1], z), (z,), (one,))
        )(roots)
        newton = value / slope
        apart = jnp.where(jnp.eye(degree, dtype=bool), jnp.inf, roots[:, None] - roots)
        move = newton / (1 - newton * jnp.sum(1 / apart, axis=1))
        return jnp.where(jnp.isfinite(move), roots - move, roots)

    start = np.exp(2j * np.pi * (np.arange(degree) + 0.3) / degree)
    return jax.lax.fori_loop(0, ABERTH_STEPS, step, start * one)


def _follow(hill: _Hill, start):
    """The zero near `start` as a function of `hill`, and whether Newton's method found it there."""

    # Zero where the matrix is singular, but at z = 1, and smooth: of the matrix with a border.
    def singular(hill, log_z):
        matrix = _matrix(hill, log_z, hill.harmonics)
        size = len(matrix)
        border = np.exp(1j * np.arange(size)) / (1 + np.abs(np.arange(size) - (size - 1) / 2))
        bordered = jnp.zeros((size + 1, size + 1), matrix.dtype).at[:size, :size].set(matrix)
        bordered = bordered.at[:size, size].set(border).at[size, :size].set(border)
        border = solve(bordered, jnp.zeros_like(bordered[0]).at[size].set(1))[size]
        return border / jnp.expm1(log_z)

    def newton(hill, log_z):
        held = jax.lax.stop_gradient(hill)
        of_z = jax.lax.stop_gradient(
            jax.jvp(partial(singular, held), (log_z,), (jnp.ones_like(log_z),))[1]
        )
        return log_z - singular(hill, log_z) / of_z

    held, first = jax.lax.stop_gradient((hill, jnp.log(start)))
    rounding = jnp.finfo(first.real.dtype).eps ** 0.75

    def go_on(carry):
        return (carry[1] > rounding) & (carry[2] < NEWTON_STEPS)

    def step(carry):
        there = newton(held, carry[0])
        return there, jnp.abs(there - carry[0]), carry[2] + 1

    found, change, _ = jax.lax.stop_gradient(
        jax.lax.while_loop(go_on, step, (first, jnp.ones_like(first.real), 0))
    )
    # One more step, whose derivatives are those of the implicit function.
    last = newton(hill, found)
    return jnp.exp(last), (jnp.abs(found - first) < 0.1) & (change <= rounding)
