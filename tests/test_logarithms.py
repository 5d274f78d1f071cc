"""Logarithms and arguments in plain operations, against 40-digit arithmetic."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from jaxlb import _logarithms

pytestmark = pytest.mark.parametrize("dtype", [np.float64, np.float32])


def units_in_the_last_place(found, exact):
    """The largest relative error over the precision."""
    errors = [
        abs(mp.mpf(float(one)) - other) / abs(other)
        for one, other in zip(found, exact, strict=True)
        if other
    ]
    return float(max(errors)) / np.finfo(found.dtype).eps


def numbers(dtype):
    """Positive and normal: of every size, about one, next to one, and powers of two."""
    rng, info = np.random.default_rng(5), np.finfo(dtype)
    wide = 10 ** rng.uniform(np.log10(info.tiny), np.log10(info.max), 500)
    near = np.append(rng.uniform(0.4, 2.5, 500), 1 + 10 ** rng.uniform(-8, -1, 200))
    return np.concatenate([wide, near, 2.0 ** np.arange(-60, 60), [info.tiny, 1.0]]).astype(dtype)


def test_log_is_exact_to_rounding(dtype):
    x = numbers(dtype)
    with mp.workdps(40):
        exact = [mp.log(mp.mpf(float(value))) for value in x]
        found = np.asarray(jax.jit(_logarithms.log)(x))
        # 1.25 was measured.
        assert units_in_the_last_place(found, exact) < 1.5
        assert np.all(found[x == 1] == 0)


def test_log1p_is_exact_to_rounding_also_near_zero(dtype):
    rng = np.random.default_rng(6)
    small = rng.choice([-1, 1], 600) * 10 ** rng.uniform(-30, -0.3, 600)
    x = np.concatenate([small, rng.uniform(-0.95, 3, 600), 10 ** rng.uniform(0, 30, 100)])
    x = x.astype(dtype)
    with mp.workdps(60):
        exact = [mp.log(1 + mp.mpf(float(value))) for value in x]
        found = np.asarray(jax.jit(_logarithms.log1p)(x))
        # 1 + x is rounded, which counts where it is far from one: 1.65 was measured.
        assert units_in_the_last_place(found, exact) < 2.5


def test_angle_is_exact_to_rounding_in_every_direction(dtype):
    rng = np.random.default_rng(7)
    x = (rng.normal(size=800) * 10 ** rng.uniform(-3, 3, 800)).astype(dtype)
    y = np.abs(rng.normal(size=800) * 10 ** rng.uniform(-3, 3, 800)).astype(dtype)
    x = np.append(x, np.array([0, 1, -1, 1, -1, 0], dtype))
    y = np.append(y, np.array([1, 0, 0, 1, 1, 0], dtype))
    with mp.workdps(40):
        exact = [mp.atan2(mp.mpf(float(b)), mp.mpf(float(a))) for a, b in zip(x, y, strict=True)]
        found = np.asarray(jax.jit(_logarithms.angle)(x, y))
        # 1.5 was measured.
        assert units_in_the_last_place(found, exact) < 2
        assert found[-1] == 0


def test_what_is_no_positive_number_has_the_logarithm_of_the_library(dtype):
    x = jnp.array([0, np.inf, np.nan], dtype)
    np.testing.assert_array_equal(_logarithms.log(x), jnp.log(x))


def test_derivatives_are_those_of_the_functions(dtype):
    x, y = jnp.asarray(0.7, dtype), jnp.asarray(1.9, dtype)
    tolerance = 8 * np.finfo(dtype).eps
    for function, expected in (
        (_logarithms.log, (1 / x, -1 / x**2)),
        (_logarithms.log1p, (1 / (1 + x), -1 / (1 + x) ** 2)),
        (
            lambda u: _logarithms.angle(u, y),
            (-y / (x * x + y * y), 2 * x * y / (x * x + y * y) ** 2),
        ),
        (
            lambda u: _logarithms.angle(y, u),
            (y / (x * x + y * y), -2 * x * y / (x * x + y * y) ** 2),
        ),
    ):
        first, second = jax.grad(function), jax.grad(jax.grad(function))
        np.testing.assert_allclose((first(x), second(x)), expected, rtol=tolerance)
