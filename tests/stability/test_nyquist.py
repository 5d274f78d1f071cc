"""The boundary of any delay law, against dense eigenvalues, published values and closed forms."""

import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import jaxlb as lb

from ..oracles import mixed_erlang


class Uniform(lb.AbstractDelay):
    """Any time up to `longest` is as likely: a moving average."""

    longest: jax.Array

    def __init__(self, longest):
        self.longest = jnp.asarray(longest)

    @property
    def mean(self):
        return self.longest / 2

    @property
    def squared_cv(self):
        return jnp.ones_like(self.longest) / 3

    def transform(self, r):
        return -jnp.expm1(-r * self.longest) / (r * self.longest)


class TwoTimes(lb.AbstractDelay):
    """1 or 2.6 times `scale`, at equal chance, and an exponential tenth more."""

    scale: jax.Array

    def __init__(self, scale):
        self.scale = jnp.asarray(scale)

    @property
    def mean(self):
        return 1.9 * self.scale

    @property
    def squared_cv(self):
        return jnp.ones_like(self.scale) * 0.65 / 1.9**2

    def transform(self, r):
        z = r * self.scale
        return (jnp.exp(-z) + jnp.exp(-2.6 * z)) / (2 + 0.2 * z)


pytestmark = pytest.mark.usefixtures("quick_compilation")


def all_of(system):
    """Critical sensitivity, frequency, delay window and safe gain of a system."""
    point = lb.stability.critical_sensitivity(system), lb.stability.hopf_frequency(system)
    window = lb.stability.critical_delay(system)
    return *point, *window, lb.stability.critical_gain_for_every_delay(system)


def up_to_sixty_stages(weights, service_rate=1.0, gain=3.0):
    """A system whose law has 60 phases, of which `weights` may use the last few only."""
    padded = np.zeros(60)
    padded[: len(weights)] = weights
    return lb.System(2.0, service_rate, lb.MixedErlang(0.5, padded), lb.Logit(gain / 2))


def abscissa(initial, generator, service_rate, gain, weights=0.0):
    """LAPACK's, of A_L written out; `gain` is lambda theta."""
    phases = len(initial)
    matrix = np.zeros((phases + 1, phases + 1))
    matrix[0, 0], matrix[0, 1:] = -service_rate, -np.sum(generator, axis=1)
    matrix[1:, 0] = -gain * np.asarray(initial)
    matrix[1:, 1:] = np.transpose(generator) - gain * np.outer(initial, weights * np.ones(phases))
    return np.linalg.eigvals(matrix).real.max()


def phase_type(rng, phases):
    """A random chain, most often a sequence with shortcuts and returns."""
    generator = 10 ** rng.uniform(-3, 0, (phases, phases)) * (rng.random((phases, phases)) < 0.5)
    generator[np.arange(phases - 1), np.arange(1, phases)] = 10 ** rng.uniform(-0.5, 1, phases - 1)
    np.fill_diagonal(generator, 0)
    leave = 10 ** rng.uniform(-2, 0, phases) * (rng.random(phases) < 0.3)
    leave[-1] = 10 ** rng.uniform(-0.5, 1)
    generator -= np.diag(generator.sum(axis=1) + leave)
    return rng.dirichlet(0.5 * np.ones(phases)), generator


def test_spectrum_changes_side_at_the_boundary_of_random_laws_and_not_before():
    rng, size, oscillating = np.random.default_rng(3), 25, 0
    laws: list[Any] = [phase_type(rng, 5) for _ in range(size)]
    # More variable than exponential: always stable.
    laws.append((np.full(5, 0.2), -np.diag(10.0 ** np.arange(-2, 3))))
    initial, generator = (np.array(parts) for parts in zip(*laws, strict=True))
    service_rate, gain = 10 ** rng.uniform([[-2], [0]], [[2], [2]], (2, size + 1))

    # Not under one jit: critical sensitivity and frequency are one program, compiled once.
    @jax.vmap
    def all_at_once(initial, generator, service_rate, gain):
        law = lb.PhaseType(initial, generator)
        return law.mean, all_of(lb.System(1.0, service_rate, law, lb.Logit(gain)))

    mean, found = all_at_once(initial, generator, service_rate, gain)
    for n, (theta, omega, lower, upper, single, safe) in enumerate(zip(*found, strict=True)):

        def side(gain, scale=1.0, n=n):
            return abscissa(initial[n], generator[n] / scale, service_rate[n], gain)

        # LAPACK's rounding, relative to the largest entry of the matrix.
        noise = 1e-13 * (service_rate[n] + np.abs(generator[n]).max())
        for below in np.geomspace(1e-3, min(theta, 1e8), 30) * (1 - 1e-6):
            assert side(below) < noise + 1e-13 * below
        if np.isfinite(theta):
            oscillating += 1
            assert omega > 0
            assert side(theta * (1 - 1e-6)) < 0 < side(theta * (1 + 1e-6))
        assert (gain[n] > safe) == np.isfinite(lower)
        assert single
        for scale in np.geomspace(1e-4, 1e4, 40):
            unstable = lower < mean[n] * scale < upper
            assert (side(gain[n], scale) > noise * max(1, 1 / scale)) == unstable
    # Not all of the laws can lose stability; enough must, and the last never does.
    assert oscillating >= 8
    assert all(np.isinf(values[-1]) for values in (*found[:4], found[-1]))


def test_spectrum_changes_side_at_the_boundary_of_weighted_rules():
    rng, size, kinds = np.random.default_rng(4), 30, set()
    initial, generator = (
        np.array(parts) for parts in zip(*[phase_type(rng, 4) for _ in range(size)], strict=True)
    )
    weights, service_rate = rng.normal(size=(size, 4)), 10 ** rng.uniform(-1, 1, size)

    # Not under one jit: critical sensitivity and frequency are one program, compiled once.
    @jax.vmap
    def all_at_once(initial, generator, service_rate, weights):
        rule = lb.WeightedLogit(1.0, weights)
        system = lb.System(2.0, service_rate, lb.PhaseType(initial, generator), rule)
        stability = lb.stability
        return (
            stability.critical_sensitivity(system),
            stability.hopf_frequency(system),
            stability.delay_crossings(system),
            stability.critical_delay(system),
        )

    found = all_at_once(initial, generator, service_rate, weights)
    means = [lb.PhaseType(*law).mean for law in zip(initial, generator, strict=True)]
    changes, windows = 0, list(zip(*found[3], strict=True))
    for n, (theta, omega) in enumerate(zip(*found[:2], strict=True)):

        def side(theta, scale=1.0, n=n):
            law = initial[n], generator[n] / scale
            return abscissa(*law, service_rate[n], 2 * theta, weights[n])

        # LAPACK's rounding, relative to the largest entry of the matrix.
        noise = 1e-13 * (service_rate[n] + np.abs(generator[n]).max())
        for below in np.geomspace(1e-3, min(theta, 1e6), 40) * (1 - 1e-6):
            assert side(below) < noise + 1e-13 * below
        kinds.add("never" if np.isinf(theta) else "real" if omega == 0 else "oscillating")
        if np.isfinite(theta):
            assert side(theta * (1 - 1e-6)) < 0 < side(theta * (1 + 1e-6))
        ends = np.asarray(found[2].mean[n])
        unstable = np.append(False, found[2].unstable[n])
        for scale in np.geomspace(1e-4, 1e4, 81):
            wanted = unstable[np.searchsorted(ends, means[n] * scale)]
            assert (side(1.0, scale) > noise * max(1, 1 / scale)) == wanted
        for end, after in zip(ends[np.isfinite(ends)] / means[n], unstable[1:], strict=False):
            changes += 1
            assert (side(1.0, end * (1 + 1e-7)) > 0) == after
            assert (side(1.0, end * (1 - 1e-7)) > 0) != after
        np.testing.assert_allclose(windows[n][:2], ends[:2], rtol=1e-14)
        assert windows[n][2] == np.isinf(ends[2])
    # All three happen, and stability changes with the mean delay of most.
    assert kinds == {"never", "real", "oscillating"}
    assert changes > size / 2


def test_uniform_delay_has_the_published_critical_window():
    """Novitzky and Pender (2020): gain 5, mu = 1, critical longest delay 2.1448124611."""
    system = lb.System(1.0, 1.0, Uniform(0.7), lb.Logit(5.0))
    lower, upper, single = lb.stability.critical_delay(system)
    # Eleven digits were given.
    np.testing.assert_allclose(2 * lower, 2.1448124611, rtol=2e-11)
    assert single
    # Re F(i y) = sin(2 y) / (2 y), whose least value this is.
    safe = lb.stability.critical_gain_for_every_delay(system)
    np.testing.assert_allclose(safe, 1 / 0.21723362821122166, rtol=1e-14)
    # D = y^2 / (K sin(y)^2) where sin(2 y) / (2 y) = -1 / K, on both sides of the lowest point.
    for mean, guess in ((lower, 1.9), (upper, 2.6)):
        y = mp.findroot(lambda y: mp.sin(2 * y) / (2 * y) + mp.mpf(1) / 5, guess)
        np.testing.assert_allclose(mean, float(y**2 / (5 * mp.sin(y) ** 2)), rtol=1e-14)


def test_safe_gain_counts_only_what_some_delay_can_reach():
    """Re F is least where Im F is positive, which no positive mean delay reaches."""
    w = np.linspace(1e-3, 60, 2_000_001)
    f = (np.exp(-1j * w) + np.exp(-2.6j * w)) / (2 + 0.2j * w)
    wanted = 1 / -f.real[f.imag <= 0].min()
    assert wanted > 1.005 / -f.real.min()
    system = lb.System(1.0, 1.0, TwoTimes(1.0), lb.Logit(1.0))
    safe = lb.stability.critical_gain_for_every_delay(system)
    # The grid of this test.
    np.testing.assert_allclose(safe, wanted, rtol=1e-4)
    for excess in (-1e-3, 1e-3):
        system = lb.System(1.0, 1.0, TwoTimes(1.0), lb.Logit(safe * (1 + excess)))
        assert np.isfinite(lb.stability.critical_delay(system).lower) == (excess > 0)


@pytest.mark.parametrize("stages", [2, 8, 60])
def test_search_agrees_with_the_closed_form(stages):
    for service_rate in (1e-3, 1.0, 30.0):
        system = up_to_sixty_stages(np.eye(60)[stages - 1], service_rate, 40.0)
        point = lb.stability.erlang_boundary(service_rate, 0.5, stages)
        window = lb.stability.erlang_delay_window(40.0, service_rate, stages)
        safe = lb.stability.erlang_safe_gain(service_rate, stages)
        exact = point.gain / 2, point.frequency, *window, safe
        # A few roundings of the transform, times the condition of the window's far end, under 100.
        np.testing.assert_allclose(
            np.array(all_of(system), float), np.array(exact, float), rtol=2e-14
        )


def test_many_stages_are_resolved():
    law = lb.from_mean_cv(1.0, 0.13)
    assert isinstance(law, lb.MixedErlang)
    assert law.num_phases == 60
    system = up_to_sixty_stages(law.weights)
    gain = 2 * float(all_of(system)[0])
    initial, generator = mixed_erlang(0.5, np.array(law.weights))
    below, above = [abscissa(initial, generator, 1.0, gain * (1 + e)) for e in (-1e-9, 1e-9)]
    assert below < 0 < above


def test_window_narrower_than_the_grid_is_found():
    """Just above the gain that is safe for every delay both crossings share one step."""
    safe = float(lb.stability.erlang_safe_gain(1.0, 8))
    for excess, there in ((1e-9, True), (-1e-9, False)):
        system = up_to_sixty_stages(np.eye(60)[7], gain=safe * (1 + excess))
        lower, upper, _ = map(float, lb.stability.critical_delay(system))
        assert np.isfinite([lower, upper]).all() == there
        if there:
            # The ends part from L / mu = 8 by the square root of the excess.
            np.testing.assert_allclose([lower, upper], 8.0, rtol=1e-3)
            assert lower < 8 < upper


def test_every_window_of_a_law_is_listed_and_the_first_is_the_critical_one():
    """Eight or forty stages, at equal chance."""
    weights = np.zeros(40)
    weights[[7, 39]] = 0.5
    system = up_to_sixty_stages(weights, gain=5.2)
    lower, upper, single, _ = map(float, all_of(system)[2:])
    assert not single
    listed = lb.stability.delay_crossings(system)
    np.testing.assert_allclose(listed.mean[:2], [lower, upper], rtol=1e-14)
    assert upper < listed.mean[2] < np.inf
    np.testing.assert_array_equal(listed.unstable[:4], [True, False, True, False])
    # The second has no end.
    assert np.isinf(listed.mean[3:]).all()
    assert not listed.unstable[4:].any()
    initial, generator = mixed_erlang(1.0, weights)
    for mean, unstable in [
        (0.999 * lower, False),
        (1.001 * lower, True),
        (0.999 * upper, True),
        (1.001 * upper, False),
        (0.999 * listed.mean[2], False),
        (1.001 * listed.mean[2], True),
        (30 * listed.mean[2], True),
    ]:
        assert (abscissa(initial, generator / mean, 1.0, 5.2) > 0) == unstable


def test_derivatives_are_those_of_the_closed_form():
    """In rates and mean, of a search and of Erlang's formulas."""

    def first(delay):
        def numbers(p):
            system = lb.System(2.0, p[0], delay(p[1]), lb.Logit(p[2]))
            window = lb.stability.critical_delay(system)
            safe = lb.stability.critical_gain_for_every_delay(system)
            return jnp.stack([window.lower, window.upper, safe])

        return jax.jit(jax.jacfwd(numbers))(jnp.array([1.3, 0.6, 4.0]))

    def second(delay):
        def number(p):
            system = lb.System(2.0, p[0], delay(p[1]), lb.Logit(1.0))
            return lb.stability.critical_sensitivity(system)

        return jax.jit(jax.jacfwd(jax.value_and_grad(number)))(jnp.array([1.3, 0.6]))

    for slopes in (first, second):
        found = slopes(lambda mean: lb.MixedErlang(mean, jnp.array([0.0, 0.0, 1.0])))
        exact = slopes(lambda mean: lb.Erlang(mean, 3))
        for one, other in zip(found, exact, strict=True):
            # Rounding times the condition of a second derivative.
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)


def test_single_precision_stays_single_and_close():
    double = up_to_sixty_stages([0.0, 0.3, 0.2, 0.5], gain=20.0)
    single = jax.tree.map(lambda x: x.astype(np.float32) if eqx.is_inexact_array(x) else x, double)
    for one, other in zip(all_of(single), all_of(double), strict=True):
        assert one.dtype in (np.float32, bool)
        # A few roundings and the condition of the window's far end.
        np.testing.assert_allclose(float(one), float(other), rtol=3e-6)


def test_mean_delays_of_the_formulas_and_of_no_delay_are_listed_alike():
    window = lb.stability.erlang_delay_window(5.0, 1.0, 3)
    listed = lb.stability.delay_crossings(lb.System(1.0, 1.0, lb.Erlang(9.0, 3), lb.Logit(5.0)))
    np.testing.assert_allclose(listed.mean, window[:2], rtol=1e-14)
    np.testing.assert_array_equal(listed.unstable, [True, False])
    calm = lb.stability.delay_crossings(lb.System(1.0, 1.0, lb.Erlang(9.0, 3), lb.Logit(3.0)))
    assert np.isinf(calm.mean).all()
    assert not calm.unstable.any()
    at_once = lb.System(1.0, 1.0, lb.NoDelay(), lb.Logit(5.0))
    assert np.isinf(lb.stability.critical_delay(at_once).lower)
    assert np.isinf(lb.stability.delay_crossings(at_once).mean).all()


class Crowding(eqx.Module):
    """Sends more to the longer queue: unstable without delay where the gain exceeds mu."""

    gain: jax.Array

    def __call__(self, queue):
        return jax.nn.softmax(self.gain * queue)


def test_rule_that_is_unstable_without_delay_has_a_window_from_zero():
    for gain, unstable in ((0.9, False), (1.1, True)):
        for delay in lb.MixedErlang(1.0, [0.5, 0.5]), lb.NoDelay():
            system = lb.System(1.0, 1.0, delay, Crowding(jnp.asarray(gain)))
            lower, upper, single = map(float, lb.stability.critical_delay(system))
            assert lower == (0 if unstable else np.inf)
            assert np.isinf(upper)
            assert single
            assert (lb.stability.spectral_abscissa(system) > 0) == unstable


def test_rules_without_a_sensitivity_or_a_scale_are_named():
    delay = lb.Erlang(1.0, 2)

    def uniform(queue):
        return 0 * queue + 0.5

    own = lb.System(1.0, 1.0, delay, uniform)
    weighted = lb.System(1.0, 1.0, delay, lb.WeightedLogit(1.0, [0.5, 0.5]))
    no_sensitivity = "`routing` must be a logit rule here, got QueueRule."
    only_logit = "`routing` must be Logit, got WeightedLogit."
    for function, system, complaint in [
        (lb.stability.critical_sensitivity, own, no_sensitivity),
        (lb.stability.hopf_frequency, own, no_sensitivity),
        (lb.stability.critical_gain_for_every_delay, weighted, only_logit),
    ]:
        with pytest.raises(ValueError, match=f"^{re.escape(complaint)}$"):
            function(system)
