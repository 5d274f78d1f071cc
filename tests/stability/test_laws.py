"""Rightmost roots of delay laws known by their transform alone."""

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


class Chain(eqx.Module):
    """Erlang, with a number of stages that need not be whole."""

    mean: Array
    stages: Array

    def __call__(self, r):
        return jnp.exp(-self.stages * jnp.log(1 + r * self.mean / self.stages))


def law_system(transform, service_rate, gain):
    return lb.System(1.0, service_rate, lb.TransformDelay(transform), lb.Logit(gain))


@jax.jit
@jax.vmap
def window_root(width, gain):
    """Slopes in the width of real and imaginary part; the two; whether complete."""

    def parts(width):
        found = lb.stability.certified_root(law_system(window(width), 1.0, gain))
        two = jnp.stack([found.root.real, found.root.imag])
        return two, (two, found.complete)

    slopes, (two, complete) = jax.jacrev(parts, has_aux=True)(width)
    return slopes, two @ jnp.array([1, 1j]), complete


TRACES = []


@jax.jit
@jax.vmap
def _chain_root(stages, gain, service_rate, mean):
    TRACES.append(stages)
    return lb.stability.certified_root(law_system(Chain(mean, stages), service_rate, gain))


def chain_root(*parameters):
    """Always of one shape, so that all tests share one program."""
    padded = _chain_root(*(np.resize(value, 30) for value in parameters))
    return jax.tree.map(lambda value: value[: len(parameters[0])], padded)


def test_window_delay_is_critical_at_the_published_width_and_not_at_spurious_ones():
    """lambda theta = 5, mu = 1; the others solve a reduced equation only."""
    _, root, complete = window_root(np.array([2.1448124611, 4.0365, 7.8552]), np.full(3, 5.0))
    assert np.all(complete)
    # Ten digits were given, and the abscissa rises by 0.03 per second of width.
    assert abs(root[0].real) < 2e-12
    assert root[0].imag > 1
    assert np.all(abs(root[1:].real) > 5e-3)


@pytest.mark.parametrize(("width", "gain"), [(0.1, 3.0), (2.0, 20.0), (9.0, 0.4), (1.0, 1e3)])
def test_window_root_is_the_rightmost_of_all_that_newton_finds(width, gain):
    """From 8000 starts in NumPy, on (r + mu) r W + K (1 - exp(-r W)), with a new root at zero."""
    _, root, complete = window_root(np.full(3, width), np.full(3, gain))
    tall = 1.5 * gain + 30 / width
    real, imag = np.meshgrid(np.linspace(-4 / width - 2, 8 / width, 40), np.linspace(0, tall, 200))
    r = (real + 1j * imag).ravel()
    with np.errstate(all="ignore"):
        for _ in range(60):
            fall = np.exp(-r * width)
            value = (r + 1) * r * width + gain * (1 - fall)
            r = r - value / ((2 * r + 1) * width + gain * width * fall)
        fall = np.exp(-r * width)
        size = abs(r) ** 2 * width + gain * (1 + abs(fall))
        solved = abs((r + 1) * r * width + gain * (1 - fall)) < 1e-12 * size
    roots = r[solved & (abs(r) > 1e-6)]
    best = roots[np.argmax(roots.real)]
    assert complete[0]
    # Newton's method in NumPy ends at rounding of the terms, 1e-12 at a gain of a thousand.
    np.testing.assert_allclose(root[0], best.real + 1j * abs(best.imag), rtol=1e-11)


def test_gradient_reaches_a_parameter_inside_the_law():
    """Reverse mode here; the width enters through a closure."""
    widths, step = np.array([0.5, 2.3, 30.0]), 1e-5
    gains = np.full(3, 5.0)
    slopes, root, _ = window_root(widths, gains)
    _, above, _ = window_root(widths + step, gains)
    _, below, _ = window_root(widths - step, gains)
    wanted = (above - below) / (2 * step)
    assert np.all(abs(root.imag) > 0)
    # The step squared times third derivatives below 1e3; rounding over the step.
    np.testing.assert_allclose(slopes @ np.array([1, 1j]), wanted, rtol=1e-6, atol=1e-9)


def test_erlang_transform_gives_the_root_of_the_polynomial():
    rng = np.random.default_rng(11)
    gain, service_rate, mean = 10 ** rng.uniform([-6, -2, -4], [6, 2, 4], (30, 3)).T
    stages = np.resize([3, 5, 9], 30)
    found = chain_root(stages.astype(float), gain, service_rate, mean)
    assert np.all(found.complete)
    for L, g, mu, d, r in zip(stages, gain, service_rate, mean, found.root, strict=True):
        wanted = complex(closed_forms.rightmost_erlang_root(mu, g, d, int(L)))
        # 2e-15 is the worst of 3000, relative to the root.
        assert abs(complex(r) - wanted) < 1e-14 * abs(wanted)


def test_fixed_delay_under_a_rule_of_ones_own_gives_lamberts_w_function():
    """Mean delays of 1e-4 to 1e4 and gains up to 1e6, all complete."""

    @jax.jit
    @jax.vmap
    def root(gain, service_rate, mean):
        delay = lb.Deterministic(mean)
        whole = lb.System(1.0, service_rate, delay, lambda q: jax.nn.softmax(-gain * q))
        return lb.stability.certified_root(whole)

    rng = np.random.default_rng(12)
    parameters = 10 ** rng.uniform([-6, -2, -4], [6, 2, 4], (60, 3))
    found = root(*parameters.T)
    assert np.all(found.complete)
    for p, r in zip(parameters, found.root, strict=True):
        wanted = complex(closed_forms.rightmost_fixed_delay_root(p[1], p[0], p[2]))
        # 2e-15 is the worst of 1000, relative to the root.
        assert abs(complex(r) - wanted) < 1e-14 * abs(wanted)


def test_without_feedback_the_root_is_that_of_service_where_the_law_converges():
    # gamma = 3, 3 and 0.3 beside mu = 1: of the last the transform is infinite at -mu.
    found = chain_root(
        np.array([3.0, 1.5, 3.0]), np.zeros(3), np.ones(3), np.array([1.0, 0.5, 10.0])
    )
    np.testing.assert_array_equal(found.complete, [True, True, False])
    np.testing.assert_array_equal(found.root[:2], [-1, -1])


def test_a_root_left_of_the_abscissa_of_convergence_is_reported_as_not_found():
    """One and two stages slower than service: the formula goes on, the transform does not."""
    found = chain_root(
        np.array([1.0, 2.0, 1.0]),
        np.array([3.0, 1e-9, 1e6]),
        np.array([5.0, 5.0, 2.0]),
        np.array([1.0, 1.0, 1.0]),
    )
    assert not np.any(found.complete)
    assert np.all(np.isnan(found.root))


def test_a_pole_of_little_weight_does_not_hide_the_root_beside_it():
    """One job in 2 to 1e10 waits long; the root beside that pole may not be passed over."""

    @jax.jit
    @jax.vmap
    def root(rare, gain):
        def law(r):
            return rare / (1 + 10 * r) + (1 - rare) / (1 + r / 5)

        return lb.stability.certified_root(law_system(law, 1.0, gain))

    found = root(np.array([0.5, 1e-2, 1e-6, 1e-10]), np.array([0.5, 10.0, 0.5, 10.0]))
    # The roots are -0.122, -0.1009, ..., none where the transform converges.
    assert not np.any(found.complete)
    assert np.all(np.isnan(found.root))


def test_rightmost_root_of_a_law_has_all_its_derivatives():
    """Of the constant delay, to second order, from 40 digits."""

    def abscissa(parameters):
        gain, service_rate, mean = parameters
        whole = law_system(Chain(mean, jnp.array(2.5)), service_rate, gain)
        return lb.stability.rightmost_root(whole).real

    def transform(mean, r):
        return (1 + r * mean / mp.mpf(2.5)) ** mp.mpf(-2.5)

    parameters = 7.0, 1.5, 0.8

    def slopes(parameters):
        gradient, value = jax.jacrev(lambda p: 2 * (abscissa(p),), has_aux=True)(parameters)
        return gradient, (value, gradient)

    # One program: the search is most of it.
    everything = jax.jit(jax.jacfwd(slopes, has_aux=True))
    hessian, (value, gradient) = everything(jnp.array(parameters))
    guess = closed_forms.exact(-0.2 + 3j)

    def root(gain, service_rate, mean):
        return closed_forms.root_near(partial(transform, mean), service_rate, gain, guess).real

    # Two dozen roundings of numbers about one.
    np.testing.assert_allclose(value, float(root(*map(mp.mpf, parameters))), rtol=3e-14)
    for i in range(3):
        order = [int(i == k) for k in range(3)]
        wanted = float(mp.diff(root, parameters, tuple(order)))
        np.testing.assert_allclose(gradient[i], wanted, rtol=1e-12, atol=1e-13)
        for j in range(i + 1):
            both = tuple(int(i == k) + int(j == k) for k in range(3))
            wanted = float(mp.diff(root, parameters, both))
            np.testing.assert_allclose(hessian[i, j], wanted, rtol=1e-11, atol=1e-12)


def test_single_precision_stays_single_and_is_as_good_as_it_can_be():
    single = np.float32

    def abscissa(gain):
        delay = lb.TransformDelay(Chain(jnp.float32(1.0), jnp.float32(4.0)))
        found = lb.stability.certified_root(lb.System(single(1), single(1), delay, lb.Logit(gain)))
        return found.root.real, found

    slope, found = jax.jit(jax.grad(abscissa, has_aux=True))(single(6.0))
    assert found.complete
    assert found.root.dtype == jnp.complex64
    assert slope.dtype == jnp.float32
    wanted = closed_forms.rightmost_erlang_root(1, 6, 1, 4)
    # A dozen roundings of 6e-8.
    assert abs(complex(found.root) - complex(wanted)) < 1e-6 * abs(wanted)


def test_a_new_number_does_not_trace_again():
    for value in (0.5, 2.0):
        chain_root(*np.full((4, 1), value))
    assert len(TRACES) == 1
