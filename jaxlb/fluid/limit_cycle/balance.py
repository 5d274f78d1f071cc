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
# The bend of a sharp rule has many more harmonics than the load: as many times are kept.
MORE = 8


class Balance(NamedTuple):
    """`load`: the coefficients a_n. `bend`: the c_n, more of them. `frequency`: omega, rad/s.
    `steps`: of Newton's method. `change`: relative, in its last step. `cut`: the last a_n over the
    first. `missed`: the c_n of the last n that the samples tell apart, over the first."""

    load: Complex[Array, " harmonics"]
    bend: Complex[Array, " more_harmonics"]
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
    found, change, steps = jax.lax.stop_gradient(_newton(frozen, start, samples))
    # One more step, of which the residual alone has derivatives: those of the implicit function.
    slope = jax.lax.stop_gradient(_slope(found, frozen, samples))
    found = found - solve(slope, _residual(found, system, samples))
    load, frequency = _unpack(found)
    every = _bend(load, samples)
    cut, missed = jnp.abs(load[-1] / load[0]), jnp.abs(every[samples // 2 - 1] / every[0])
    cut, missed = jax.lax.stop_gradient((cut, missed))
    more = min(samples // 2, MORE * harmonics)
    return Balance(load, every[:more], frequency, steps, change, cut, missed)


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


def slope_of_bend(load: Complex[Array, " harmonics"], samples: int) -> Complex[Array, " samples"]:
    """Coefficients of 1 / cosh(eta / 2)^2, the derivative of the bend, at n = 0, 2, 4, ..., and
    from the end at -2, -4, ...: as many as samples of half a period."""
    return jnp.fft.fft(1 / jnp.cosh(_wave(load, samples) / 2) ** 2) / samples


def _start(system, remaining, frequency, harmonics, samples):
    first = describing_amplitude(remaining)
    load = jnp.zeros(harmonics, jnp.result_type(first, jnp.complex64)).at[0].set(first)
    rest = -_gains(system, frequency, harmonics) * _bend(load, samples)[:harmonics]
    return _pack(load.at[1:].set(rest[1:]), frequency)


def _newton(system: System, start, samples: int):
    enough = 1e-10 if start.dtype == jnp.float64 else 1e-5

    def step(carry):
        unknowns, _, steps = carry
        slope = _slope(unknowns, system, samples)
        move = solve(slope, _residual(unknowns, system, samples))
        return unknowns - move, jnp.abs(move).max() / jnp.abs(unknowns).max(), steps + 1

    return jax.lax.while_loop(
        lambda carry: (carry[1] > enough) & (carry[2] < MOST_STEPS),
        step,
        (start, jnp.ones_like(start[0]), jnp.zeros((), jnp.int32)),
    )


def _residual(unknowns, system: System, samples: int):
    load, frequency = _unpack(unknowns)
    bend = _bend(load, samples)[: len(load)]
    rest = load + _gains(system, frequency, len(load)) * bend
    return jnp.concatenate([rest.real, rest.imag])


def _slope(unknowns, system: System, samples: int):
    """Jacobian of `_residual`: a change d of the load changes c_n by the sum over m of
    P_(n - m) d_m + P_(n + m) conj(d_m), with P of `slope_of_bend`."""
    load, log_frequency = _unpack(unknowns)[0], unknowns[-1]
    gains, by_frequency = jax.jvp(
        lambda log: _gains(system, jnp.exp(log), len(load)),
        (log_frequency,),
        (jnp.ones_like(log_frequency),),
    )
    slopes, place = slope_of_bend(load, samples), np.arange(len(load))
    # Half of n - m, and of n + m.
    near, far = place[:, None] - place, place[:, None] + place + 1
    near, far = slopes[near % samples], slopes[far % samples]
    one = jnp.eye(len(load), dtype=load.dtype)
    by_real = one + gains[:, None] * (near + far)
    by_imaginary = 1j * (one + gains[:, None] * (near - far))
    by_frequency = (by_frequency * _bend(load, samples)[: len(load)])[:, None]
    slope = jnp.concatenate([by_real, by_imaginary[:, 1:], by_frequency], axis=1)
    return jnp.concatenate([slope.real, slope.imag])


def _gains(system: System, frequency, harmonics: int):
    """G of each harmonic."""
    at = jax.lax.complex(jnp.zeros(harmonics, frequency.dtype), frequency * numbers(harmonics))
    return jax.vmap(partial(open_loop, system))(at)


def _bend(load, samples: int):
    """Coefficients c_n of 2 tanh(eta / 2) at n = 1, 3, ...: as many as samples of half a period."""
    bent = 2 * jnp.tanh(_wave(load, samples) / 2)
    return 2 / samples * jnp.fft.fft(bent * _first(samples, load.dtype).conj())


def _wave(load, samples: int):
    """eta at equal steps of half a period."""
    padded = jnp.zeros(samples, load.dtype).at[: len(load)].set(load)
    return samples * (jnp.fft.ifft(padded) * _first(samples, load.dtype)).real


def _first(samples: int, dtype: Any):
    return jnp.asarray(np.exp(1j * np.pi * np.arange(samples) / samples), dtype)


def _pack(load, frequency):
    # The phase of the first is zero, and the frequency is positive.
    return jnp.concatenate([load.real, load.imag[1:], jnp.log(frequency)[None]])


def _unpack(unknowns):
    harmonics = len(unknowns) // 2
    imaginary = jnp.concatenate([jnp.zeros_like(unknowns[:1]), unknowns[harmonics:-1]])
    return jax.lax.complex(unknowns[:harmonics], imaginary), jnp.exp(unknowns[-1])
