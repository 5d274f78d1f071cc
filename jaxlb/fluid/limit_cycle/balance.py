"""Harmonic balance: the cycle of a loop with one bend, by its odd harmonics.

With two servers alike and a logit rule the difference system (6)-(8) is such a loop: the difference
of loads s makes a difference of inflows -2 lambda tanh(theta s / 2), from which the delay and the
service make s again, linearly. With eta = theta s = Re sum a_n e^(i n omega t), a cycle solves

    a_n + G(i n omega) c_n = 0,    n = 1, 3, ..., 2 M - 1,

where G is the gain of the linear loop (`jaxlb.stability.open_loop`) and c_n the coefficients of
2 tanh(eta / 2). Even harmonics are zero: half a period later the cycle is its own negative. Time
counts from where the phase of a_1 is zero. Newton's method starts from the describing function, the
balance of the first harmonic alone.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float, Int

from ..._elimination import solve
from ...model.system import System
from ...stability import open_loop

MOST_STEPS = 16
BISECTIONS = 50


class Balance(NamedTuple):
    """`load`: the coefficients a_n. `bend`: the c_n. `frequency`: omega, rad/s. `steps`: of
    Newton's method. `change`: relative, in its last step. `cut`: the last a_n over the first.
    `missed`: the c_n of the last n that the samples tell apart, over the first."""

    load: Complex[Array, " harmonics"]
    bend: Complex[Array, " harmonics"]
    frequency: Float[Array, ""]
    steps: Int[Array, ""]
    change: Float[Array, ""]
    cut: Float[Array, ""]
    missed: Float[Array, ""]


def numbers(harmonics: int) -> np.ndarray:
    """n = 1, 3, ..."""
    return 2 * np.arange(harmonics) + 1


def balance(
    system: System,
    remaining: Float[Array, ""],
    frequency: Float[Array, ""],
    harmonics: int,
    samples: int,
) -> Balance:
    """The cycle of a system beyond its Hopf point; differentiable once in all numbers of `system`.

    `remaining`: the critical sensitivity over the rule's, in (0, 1). `frequency`: at the Hopf
    point, rad/s. `samples`: of half a period.
    """
    start = jax.lax.stop_gradient(_start(system, remaining, frequency, harmonics, samples))
    frozen = jax.lax.stop_gradient(system)
    found, change, steps = _newton(frozen, start, samples)
    found, change = jax.lax.stop_gradient((found, change))
    # One more step, of which the residual alone has derivatives: those of the implicit function.
    slope = jax.jacfwd(partial(_residual, system=frozen, samples=samples))(found)
    found = found - solve(slope, _residual(found, system, samples))
    load, frequency = _unpack(found)
    bend = _bend(load, samples)
    last = _bend(load, samples, np.array([2 * (samples // 2) - 1]))
    cut, missed = jax.lax.stop_gradient((jnp.abs(load[-1] / load[0]), jnp.abs(last[0] / bend[0])))
    return Balance(load, bend, frequency, steps, change, cut, missed)


def describing_amplitude(remaining: Float[Array, ""]) -> Float[Array, ""]:
    """Amplitude a of eta at which the first harmonic of 2 tanh(a cos / 2) is `remaining` * a."""
    cosine = jnp.cos(jnp.pi * np.arange(128) / 128).astype(remaining.dtype)

    def left(amplitude):
        wave = 2 * jnp.tanh(amplitude * cosine / 2)
        return 2 / len(cosine) * jnp.sum(wave * cosine) / amplitude

    def halve(_, ends):
        low, high = ends
        middle = jnp.sqrt(low * high)
        beyond = left(middle) < remaining
        return jnp.where(beyond, low, middle), jnp.where(beyond, middle, high)

    # tanh is below its argument and one, and above the first two terms of its series.
    ends = 4 * jnp.sqrt(1 - remaining) * 0.999, 8 / (jnp.pi * remaining) * 1.001
    low, high = jax.lax.fori_loop(0, BISECTIONS, halve, ends)
    return jnp.sqrt(low * high)


def _start(system, remaining, frequency, harmonics, samples):
    first = describing_amplitude(remaining)
    load = jnp.zeros(harmonics, jnp.result_type(first, jnp.complex64)).at[0].set(first)
    rest = -_gains(system, frequency, harmonics) * _bend(load, samples)
    return _pack(load.at[1:].set(rest[1:]), frequency)


def _newton(system: System, start, samples: int):
    residual = partial(_residual, system=system, samples=samples)
    enough = 1e-10 if start.dtype == jnp.float64 else 1e-5

    def step(carry):
        unknowns, _, steps = carry
        move = solve(jax.jacfwd(residual)(unknowns), residual(unknowns))
        return unknowns - move, jnp.abs(move).max() / jnp.abs(unknowns).max(), steps + 1

    return jax.lax.while_loop(
        lambda carry: (carry[1] > enough) & (carry[2] < MOST_STEPS),
        step,
        (start, jnp.ones_like(start[0]), jnp.zeros((), jnp.int32)),
    )


def _residual(unknowns, system: System, samples: int):
    load, frequency = _unpack(unknowns)
    rest = load + _gains(system, frequency, len(load)) * _bend(load, samples)
    return jnp.concatenate([rest.real, rest.imag])


def _gains(system: System, frequency, harmonics: int):
    """G of each harmonic."""
    at = jax.lax.complex(jnp.zeros(harmonics, frequency.dtype), frequency * numbers(harmonics))
    return jax.vmap(partial(open_loop, system))(at)


def _bend(load, samples: int, wanted: np.ndarray | None = None):
    """Coefficients c_n of 2 tanh(eta / 2), by default for the n of `load`."""
    waves = _waves(numbers(len(load)), samples, load.dtype)
    bent = 2 * jnp.tanh((waves @ load).real / 2)
    onto = waves if wanted is None else _waves(wanted, samples, load.dtype)
    return 2 / samples * (bent @ onto.conj())


def _waves(number: np.ndarray, samples: int, dtype: Any):
    """exp(i n tau) at equal steps of half a period."""
    return jnp.asarray(np.exp(1j * np.outer(np.pi * np.arange(samples) / samples, number)), dtype)


def _pack(load, frequency):
    # The phase of the first is zero, and the frequency is positive.
    return jnp.concatenate([load.real, load.imag[1:], jnp.log(frequency)[None]])


def _unpack(unknowns):
    harmonics = len(unknowns) // 2
    imaginary = jnp.concatenate([jnp.zeros_like(unknowns[:1]), unknowns[harmonics:-1]])
    return jax.lax.complex(unknowns[:harmonics], imaginary), jnp.exp(unknowns[-1])
