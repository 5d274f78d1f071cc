"""Delays by their quantile function, against closed forms and forty digits."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from jaxtyping import Array

import jaxlb as lb

from .. import closed_forms
from ..laws import window

pytestmark = pytest.mark.usefixtures("quick_compilation")


def lognormal(u, spread=0.5):
    return jnp.exp(spread * jax.scipy.special.ndtri(u))


def exponential(u, mean=0.7):
    return -mean * jnp.log1p(-u)


def lognormal_transform(r):
    r = complex(r)
    with mp.workdps(20):
        return mp.quad(lambda z: mp.npdf(z) * mp.exp(-r * mp.exp(z / 2)), mp.linspace(-9, 9, 40))


LAWS = {
    "exponential": (exponential, partial(closed_forms.erlang_transform, 0.7, 1)),
    "uniform": (lambda u: 3.0 * u, lambda r: window(3.0)(jnp.asarray(r))),
    "lognormal": (lognormal, lognormal_transform),
}


@pytest.mark.parametrize("name", LAWS)
def test_transform_is_that_of_the_law(name):
    """To rounding up to 10 over the mean; from there on waves outrun the points."""
    quantile, transform = LAWS[name]
    delay = lb.QuantileDelay(quantile)
    turns = np.array([0, 1e-9j, 0.3, 2j, 1 + 5j, 10j, 30j, 7.0])
    r = turns / float(delay.mean)
    found = jax.vmap(delay.transform)(jnp.asarray(r))
    wanted = np.array([complex(transform(point)) for point in r])
    error = abs(np.asarray(found) - wanted)
    assert error[abs(turns) <= 10].max() < 2e-14
    assert error.max() < 1e-8


@pytest.mark.parametrize(
    ("quantile", "mean", "squared_cv"),
    [
        (exponential, 0.7, 1.0),
        (lambda u: 3.0 * u, 1.5, 1 / 3),
        (lambda u: 1 + 3.0 * u, 2.5, 0.12),
        (lognormal, np.exp(0.125), np.expm1(0.25)),
        # Parts beyond 1 - 2e-16 are (2e-16)^(3/4), three quarters and more.
        (lambda u: (1 - u) ** -0.25, 4 / 3, 1 / 8),
    ],
    ids=["exponential", "uniform", "shifted", "lognormal", "pareto"],
)
def test_mean_and_variance_are_those_of_the_law(quantile, mean, squared_cv):
    delay = lb.QuantileDelay(quantile)
    np.testing.assert_allclose(delay.mean, mean, rtol=1e-11)
    np.testing.assert_allclose(delay.squared_cv, squared_cv, rtol=1e-6)


def test_law_of_measurements_is_right_to_1e_5():
    """Steps and kinks: 37 measured times, with straight lines between their quantiles."""
    times = np.sort(np.random.default_rng(0).gamma(3.0, 0.5, 37))
    delay = lb.QuantileDelay(lambda u: jnp.interp(u, np.linspace(0, 1, 37), times))
    low, high = times[:-1], times[1:]
    r = 2 + 3j
    pieces = (np.exp(-r * low) - np.exp(-r * high)) / (r * (high - low))
    np.testing.assert_allclose(delay.mean, ((low + high) / 2).mean(), rtol=1e-5)
    np.testing.assert_allclose(delay.transform(jnp.asarray(r)), pieces.mean(), atol=1e-5)


def test_stability_is_that_of_the_same_law_with_a_transform():
    """Uniform on 0 to W, whose transform has a closed form."""

    def root(delay):
        return lb.stability.rightmost_root(lb.System(15.0, 1.0, delay, lb.Logit(1.0)))

    found = root(lb.QuantileDelay(lambda u: 2.0 * u))
    # Both are polished to rounding, of which the condition of a root makes some tens.
    np.testing.assert_allclose(found, root(lb.TransformDelay(window(2.0))), rtol=1e-13)


class Scaled(eqx.Module):
    """Uniform on 0 to `width`, s."""

    width: Array

    def __call__(self, u):
        return self.width * u


def test_slopes_in_the_numbers_of_the_law_are_those_of_the_transform():
    slope = jax.grad(lambda w: lb.QuantileDelay(Scaled(w)).transform(jnp.asarray(1 + 1j)).real)
    wanted = jax.grad(lambda w: window(w)(jnp.asarray(1 + 1j)).real)
    np.testing.assert_allclose(slope(2.0), wanted(2.0), rtol=1e-13)


def test_precision_is_that_of_the_numbers_of_the_law():
    delay = lb.QuantileDelay(Scaled(jnp.float32(3)))
    assert delay.mean.dtype == jnp.float32
    assert delay.transform(jnp.complex64(1 + 1j)).dtype == jnp.complex64
    np.testing.assert_allclose(delay.mean, 1.5, rtol=3e-7)
    np.testing.assert_allclose(
        delay.transform(jnp.complex64(1 + 1j)), window(3.0)(jnp.asarray(1 + 1j)), atol=3e-7
    )


@pytest.mark.parametrize(
    ("quantile", "message"),
    [
        (3.0, "`quantile` must map a chance to seconds, got 3.0"),
        (lambda u: jnp.stack([u, u]), "`quantile` must return one number, got shape"),
        (lambda u: u - 0.1, "`quantile` must be finite, non-negative and increasing"),
        (lambda u: 1 - u, "`quantile` must be finite, non-negative and increasing"),
        (lambda u: u / (u > 0.5), "`quantile` must be finite, non-negative and increasing"),
    ],
    ids=["number", "shape", "negative", "falling", "infinite"],
)
def test_bad_quantile_functions_raise(quantile, message):
    with pytest.raises(ValueError, match=message):
        lb.QuantileDelay(quantile)


def test_traced_quantile_functions_are_seen_by_valid():
    valid = jax.jit(jax.vmap(lambda w: lb.QuantileDelay(Scaled(w)).valid))
    np.testing.assert_array_equal(
        valid(jnp.array([1.0, 0.0, -1.0, np.nan, np.inf])), [True, False, False, False, False]
    )


def test_quantiles_are_those_of_the_law():
    delay = lb.QuantileDelay(exponential)
    chances = jnp.array([[0.25, 0.5], [0.75, 0.999]])
    np.testing.assert_allclose(delay.at(chances), exponential(chances))
