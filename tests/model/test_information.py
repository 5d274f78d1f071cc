from typing import Any

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy.optimize import brentq, fsolve

import jaxlb as lb

from ..closed_forms import exact

pytestmark = pytest.mark.usefixtures("quick_compilation")


def system(delay, gain=5.0, service_rate=1.0):
    """lambda theta is `gain`."""
    return lb.System(10.0, service_rate, delay, lb.Logit(gain / 10))


def window_transform(width, r):
    z = exact(r) * exact(width)
    return -mp.expm1(-z) / z if z else mp.mpf(1)


def test_published_critical_delay_of_late_queues_is_reproduced():
    """arccos(-mu / k) / sqrt(k^2 - mu^2) for k = lambda theta = 5 and mu = 1."""
    critical = lb.stability.critical_delay(system(lb.Deterministic(1.0))).lower
    # The number as published has ten digits, and the closed form is exact to rounding.
    np.testing.assert_allclose(critical, 0.3617394710, rtol=0, atol=5e-11)
    np.testing.assert_allclose(critical, np.arccos(-0.2) / np.sqrt(24), rtol=1e-14)


@pytest.mark.parametrize("width", [0.3, 2.0])
@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_transform_of_a_moving_average_is_right_in_all_derivatives(order, width):
    """Near the removable singularity, at the seam of the two formulas, and far away."""
    law = lb.moving_average(width).transform
    points = np.array([0, 1e-9j, 1e-4 + 2e-5j, 0.999j, 1.001j, 0.5 - 0.7j, 3 - 4j, 40j]) / width

    def derivative(r):
        function = law
        for _ in range(order):
            function = (lambda f: lambda r: jax.jvp(f, (r,), (jnp.ones_like(r),))[1])(function)
        return function(r)

    found = jax.vmap(derivative)(jnp.asarray(points))
    wanted = [
        complex(mp.diff(lambda r: window_transform(width, r), exact(r), order)) for r in points
    ]
    # Each derivative of the closed formula cancels some digits where it begins, at abs(z) = 1.
    np.testing.assert_allclose(found, wanted, atol=1e-14 * 10**order * width**order)


def test_a_moving_average_has_the_moments_of_a_uniform_delay():
    delay = lb.moving_average(3.0)
    np.testing.assert_allclose(delay.mean, 1.5, rtol=1e-15)
    np.testing.assert_allclose(delay.squared_cv, 1 / 3, rtol=1e-14)
    single = lb.moving_average(np.float32(3))
    assert single.transform(jnp.complex64(0.1j)).dtype == jnp.complex64


def test_critical_window_of_a_moving_average_is_that_of_a_root_finder():
    """i w + mu + k (1 - e^(-i w W)) / (i w W) = 0 in w and W."""

    def equations(unknowns):
        frequency, width = unknowns
        r = 1j * frequency
        residual = r + 1 + 5 * (1 - np.exp(-r * width)) / (r * width)
        return residual.real, residual.imag

    root: Any = fsolve(equations, (2.0, 2.5), xtol=1e-13)
    frequency, width = root
    critical = lb.stability.critical_delay(system(lb.moving_average(1.0)))
    # The mean of the law is half the window. The finder's own tolerance is 1e-13.
    np.testing.assert_allclose(2 * critical.lower, width, rtol=1e-12)
    np.testing.assert_allclose(width, 2.1448124611, rtol=1e-10)
    at = system(lb.moving_average(width))
    np.testing.assert_allclose(lb.stability.critical_sensitivity(at), 0.5, rtol=1e-12)
    np.testing.assert_allclose(lb.stability.hopf_frequency(at), frequency, rtol=1e-12)
    np.testing.assert_allclose(lb.stability.spectral_abscissa(at), 0, atol=1e-12)


@pytest.mark.parametrize("weight", [-0.1, 0.05, 0.15])
def test_critical_sensitivity_under_velocity_information_is_the_closed_form(weight):
    """w^2 = (k^2 - mu^2) / (1 - k^2 weight^2), and the delay from the phase there."""
    gain, rate = 5.0, 1.0
    frequency = np.sqrt((gain**2 - rate**2) / (1 - (gain * weight) ** 2))
    turn = np.angle(-(1 + 1j * weight * frequency) / (rate + 1j * frequency)) % (2 * np.pi)
    delay = lb.velocity_information(lb.Deterministic(turn / frequency), weight)
    np.testing.assert_allclose(delay.mean, turn / frequency - weight, rtol=1e-14)
    found = (
        lb.stability.critical_sensitivity(system(delay)),
        lb.stability.hopf_frequency(system(delay)),
    )
    # As stated by `critical_sensitivity` for the search on the axis.
    np.testing.assert_allclose(found, (gain / 10, frequency), rtol=1e-12)


def test_critical_delay_under_velocity_information_keeps_the_ratio_of_weight_and_delay():
    """The law keeps its shape: weight = D / 4."""
    gain, rate, ratio = 3.0, 1.0, 0.25

    def excess(lag):
        frequency = np.sqrt((gain**2 - rate**2) / (1 - (gain * ratio * lag) ** 2))
        open_loop = gain * (1 + 1j * ratio * lag * frequency) / (rate + 1j * frequency)
        return np.angle(-open_loop * np.exp(-1j * lag * frequency))

    lag: Any = brentq(excess, 0.3, 1.0, xtol=1e-14)
    delay = lb.velocity_information(lb.Deterministic(1.0), ratio)
    critical = lb.stability.critical_delay(system(delay, gain))
    # The mean of the law is D less the weight.
    np.testing.assert_allclose(critical.lower, (1 - ratio) * lag, rtol=1e-12)


def test_velocity_information_of_any_delay_is_its_transform_times_a_line():
    delay = lb.Erlang(1.5, 3)
    shown = lb.velocity_information(delay, 0.4)
    r = jnp.array(0.3 + 2j)
    np.testing.assert_allclose(shown.transform(r), (1 + 0.4 * r) * delay.transform(r), rtol=1e-15)
    slope = jax.grad(lambda w: lb.velocity_information(delay, w).mean)(0.4)
    np.testing.assert_allclose(slope, -1, rtol=1e-14)


@pytest.mark.parametrize(
    ("words", "work"),
    [
        ("`window` must be positive and finite, got 0.0 s", lambda: lb.moving_average(0.0)),
        ("`window` must be a number", lambda: lb.moving_average("1")),
        ("`delay` must be of type", lambda: lb.velocity_information(1.0, 0.1)),  # pyright: ignore
        (
            "`weight` must be below the delay's mean 0.5, got 0.5 s",
            lambda: lb.velocity_information(lb.Deterministic(0.5), 0.5),
        ),
        (
            "`weight` must be finite, got nan s",
            lambda: lb.velocity_information(lb.Deterministic(0.5), np.nan),
        ),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_bad_arguments_are_named(words, work):
    with pytest.raises(ValueError, match="must") as error:
        work()
    assert str(error.value).startswith(words)
