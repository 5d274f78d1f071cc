"""The fastest decay in closed form, and the measures of a decay."""

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import jaxlb as lb

from .. import closed_forms

pytestmark = pytest.mark.usefixtures("quick_compilation")

# lambda, theta, mu, D, L, theta*, abscissa there, D*, abscissa there: made with 60 digits outside
# this project; L = infinity is the deterministic delay.
REFERENCE = [
    (15, 1, 1, 1, 1, 0.0, -1.0, 0.01613323034066492, -31.491933384829668),
    (
        15,
        1,
        1,
        1,
        2,
        0.0024691358024691358,
        -1.3333333333333333,
        0.019189933943949775,
        -35.407102387491754,
    ),
    (10, 1, 1, 4, 1, 0.05625, -0.625, 0.02382303659696906, -21.488088481701517),
    (10, 1, 1, 4, 2, 0.0, -0.5, 0.02838585698283843, -24.152540884581637),
    (1, 0.25, 0.5, 1, 5, 0.177978515625, -1.25, 0.8080258820988188, -1.447986766424832),
    (
        2,
        0.05,
        1,
        1,
        8,
        0.052079856571550606,
        -1.7777777777777777,
        1.0178867024796483,
        -1.7621578752343132,
    ),
    (
        1,
        0.1,
        1,
        1,
        100,
        0.13264653271025117,
        -1.9801980198019802,
        1.1445121409002126,
        -1.8551828954438998,
    ),
    (
        1,
        0.135,
        1,
        1,
        1000000.0,
        0.13533501256622665,
        -1.999998000002,
        1.001239632886732,
        -1.9987599031404861,
    ),
    (1, 0.135, 1, 1, np.inf, 0.1353352832366127, -2.0, 1.0012406347475349, -1.9987609025198545),
    (1, 3, 1, 1, np.inf, 0.1353352832366127, -2.0, 0.10986753920304727, -10.101869462570653),
    (3, 0.5, 6, 2, 4, 0.0, -2.0, 0.09834909787919198, -12.934289152125091),
    (
        1,
        1e-06,
        0.001,
        1,
        3,
        0.3159845858906289,
        -0.75075,
        2139.703077797089,
        -0.0011005159233458482,
    ),
    (2, 0.001, 50, 1, 7, 0.0, -7.0, 0.08586527582959001, -53.94038245141777),
    (
        1,
        1000000.0,
        1,
        0.01,
        2,
        29.187403703703705,
        -67.33333333333333,
        2.9629616460913155e-07,
        -2250001.6666665184,
    ),
]


def system(arrival_rate, sensitivity, service_rate, mean, stages):
    delay = lb.Deterministic(mean) if np.isinf(stages) else lb.Erlang(mean, int(stages))
    return lb.System(arrival_rate, service_rate, delay, lb.Logit(sensitivity))


@pytest.fixture(scope="module")
def best_gain():
    return jax.jit(jax.vmap(lb.stability.erlang_best_gain))


@pytest.fixture(scope="module")
def best_delay():
    return jax.jit(jax.vmap(lb.stability.erlang_best_delay))


@pytest.fixture(scope="module")
def abscissa():
    """Of a mean, a number of stages and a gain, over a vector of 121."""
    root = jax.vmap(lambda *p: lb.stability.erlang_root(1.0, *p).root.real, (None, 0, None, 0))
    return jax.jit(root)


def test_optima_are_the_reference_values(best_gain, best_delay):
    given, wanted = np.split(np.array(REFERENCE, float), [5], axis=1)
    arrival_rate, sensitivity, service_rate, mean, stages = given.T
    gain, abscissa = best_gain(service_rate, mean, stages)
    found = (
        gain / arrival_rate,
        abscissa,
        *best_delay(arrival_rate * sensitivity, service_rate, stages),
    )
    # A few roundings; the power (1 - q)^(L + 1) adds none, its exponent being of order one here.
    np.testing.assert_allclose(np.stack(found, axis=1), wanted, rtol=2e-15)


@pytest.mark.parametrize("row", [REFERENCE[1], REFERENCE[8]], ids=["two stages", "fixed"])
def test_a_system_has_the_optima_of_its_numbers(row):
    whole = system(*row[:5])
    found = *lb.stability.best_sensitivity(whole), *lb.stability.best_delay(whole)
    np.testing.assert_allclose(found, row[5:], rtol=2e-15)


def draws(size, seed):
    rng = np.random.default_rng(seed)
    stages = np.floor(10 ** rng.uniform(0, 6, size))
    stages[: size // 3] = rng.integers(1, 12, size // 3)
    stages[-size // 8 :] = np.inf
    return stages, 10 ** rng.uniform(-4, 4, size), 10 ** rng.uniform(-6, 6, size)


def exact_best_delay(ratio, stages):
    """Root m of log(ratio m) = (L + 1) log((L - m) / (L + 1)) by bisection with 40 digits."""
    ratio = mp.mpf(float(ratio))
    if np.isinf(stages):
        return mp.lambertw(mp.exp(-1) / ratio).real
    L = mp.mpf(float(stages))
    low, high = mp.mpf(-100), mp.mpf(100)
    for _ in range(140):
        t = (low + high) / 2
        over = -mp.log1p(mp.exp(-t)) + (L + 1) * mp.log1p(mp.exp(t))
        over += mp.log(ratio * L) + (L + 1) * mp.log1p(1 / L)
        low, high = (low, t) if over > 0 else (t, high)
    return L / (1 + mp.exp(-low))


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 4e-15), (np.float32, 2e-6)])
def test_best_delay_solves_its_equation_to_rounding(best_delay, dtype, tolerance):
    stages, _, ratio = (values.astype(dtype) for values in draws(60, 1))
    found = best_delay(ratio, np.ones_like(ratio), stages)
    assert found.value.dtype == found.abscissa.dtype == dtype
    exact = np.array([float(exact_best_delay(*pair)) for pair in zip(ratio, stages, strict=True)])
    # Ten roundings, and a dozen of the exponent (L + 1) log, of order one to ten.
    np.testing.assert_allclose(found.value, exact, rtol=tolerance)
    share = 1 / (1 + 1 / stages.astype(float))
    np.testing.assert_allclose(found.abscissa, -share * (1 + 1 / exact), rtol=tolerance)


def test_best_gain_is_the_power_to_rounding(best_gain):
    stages, m, _ = draws(150, 2)
    found = best_gain(m, np.ones_like(m), stages)
    for L, mean, value in zip(stages, m, found.value, strict=True):
        at: Any = closed_forms.exact(mean)
        exact: Any = closed_forms.exact(0)
        if np.isinf(L):
            exact = mp.exp(-1 - at)
        elif L == 1:
            exact = (1 - at) ** 2 / 4
        elif at < L:
            many = closed_forms.exact(L)
            exact = ((many - at) / (many + 1)) ** (many + 1)
        # The logarithm of the power loses its own size in roundings; near 1e-308 numbers end.
        size = 10 + abs(float(closed_forms.exact(mp.log(exact)))) if float(exact) > 1e-290 else 0
        assert abs(float(value) - float(exact)) <= 4e-16 * size * float(exact) + 1e-290


@pytest.mark.parametrize("stages", [1.0, 2.0, 5.0, 20.0, np.inf])
def test_no_other_sensitivity_decays_faster(best_gain, abscissa, stages):
    m = np.array([0.3, 0.8, 7.0])
    for service_rate, best, lowest in zip(m, *best_gain(m, 0 * m + 1, 0 * m + stages), strict=True):
        gains = np.append(best, np.geomspace(1e-6, 1e4, 120))
        found = abscissa(service_rate, np.ones(121), stages, gains)
        # At the double root the rounded gain's abscissa is good to the square root of rounding.
        assert np.all(found >= lowest - 1e-12)
        np.testing.assert_allclose(found[0], lowest, rtol=1e-6)


@pytest.mark.parametrize("stages", [1.0, 2.0, 5.0, 20.0, np.inf])
def test_no_other_delay_decays_faster_nor_does_none(best_delay, abscissa, stages):
    gain = np.array([0.05, 1.0, 30.0])
    for each, best, lowest in zip(
        gain, *best_delay(gain, 0 * gain + 1, 0 * gain + stages), strict=True
    ):
        means = best * np.append(1.0, np.geomspace(1e-3, 1e3, 120))
        found = abscissa(1.0, means, stages, np.full(121, each))
        assert np.all(found >= lowest * (1 + 1e-12))
        np.testing.assert_allclose(found[0], lowest, rtol=1e-6)
        assert lowest < -(1.0 + each)


def test_half_the_digits_of_the_abscissa_are_lost_at_the_rounded_optimum():
    """Why the optimum brings its own abscissa."""
    best = lb.stability.erlang_best_gain(1.0, 1.0, 8.0)
    assert best.abscissa == -16 / 9
    nudged = lb.stability.erlang_root(1.0, 1.0, 1.0, 8.0, best.value * (1 + 1e-14)).root.real
    # Its slope towards more gain is finite; towards less it is infinite, as the square root.
    less = lb.stability.erlang_root(1.0, 1.0, 1.0, 8.0, best.value * (1 - 1e-14)).root.real
    assert abs(nudged - best.abscissa) < 1e-13
    assert less - best.abscissa > 1e-8


def test_best_delay_without_sensitivity_is_its_limit():
    def best(*p):
        best = lb.stability.erlang_best_delay(*p)
        return best.value + best.abscissa, best

    stages = jnp.array([1.0, 5.0, jnp.inf])
    slopes, found = jax.vmap(jax.grad(best, (0, 1, 2), has_aux=True), (None, None, 0))(
        0.0, 4.0, stages
    )
    assert found.value.tolist() == [0.25, 1.25, np.inf]
    assert found.abscissa.tolist() == [-4.0] * 3
    # L / mu - mu; an infinite mean, and the infinite slope in the gain, have none.
    np.testing.assert_array_equal(slopes, [[0, 0, 0], [-17 / 16, -21 / 16, -1], [1 / 4, 1 / 4, 0]])


def test_gradients_of_the_optima_are_those_of_finite_differences():
    def both(p):
        gain = lb.stability.erlang_best_gain(p[0], p[1], p[2])
        return jnp.stack([*gain, *lb.stability.erlang_best_delay(p[1], p[0], p[2])])

    # Not at one stage, where the range ends.
    points = jnp.array([[1.3, 0.6, 2.0], [1.3, 0.6, 5.0], [2.0, 0.3, 1.6], [0.4, 1.0, 40.0]])
    step = 1e-6
    shifts = step * jnp.concatenate([jnp.eye(3), -jnp.eye(3)])

    @jax.jit
    @jax.vmap
    def slopes_and_bends(p):
        near = jax.vmap(both)(p + shifts)
        steep = jax.vmap(jax.jacfwd(both))(p + shifts)
        return (
            (jax.jacrev(both)(p), jax.jacfwd(both)(p), (near[:3] - near[3:]).T / (2 * step)),
            (jax.jacrev(jax.jacfwd(both))(p), (steep[:3] - steep[3:]) / (2 * step)),
        )

    (reverse, forward, wanted), (bends, wanted_bends) = slopes_and_bends(points)
    # The step squared times third derivatives of some hundreds; rounding over the step, 1e-9.
    np.testing.assert_allclose(reverse, wanted, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(forward, reverse, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(bends, np.moveaxis(wanted_bends, 1, -1), rtol=1e-6, atol=1e-7)


def test_nothing_is_nan_over_the_whole_range(best_gain, best_delay):
    stages, m, ratio = draws(5000, 3)
    for function, first in [
        (lb.stability.erlang_best_gain, m),
        (lb.stability.erlang_best_delay, ratio),
    ]:
        slopes = jax.jit(jax.vmap(jax.grad(lambda *p, f=function: sum(f(*p)), (0, 1, 2))))
        for part in slopes(first, np.ones_like(m), stages):
            assert np.isfinite(part).all()
    for found in (
        *best_gain(m, np.ones_like(m), stages),
        *best_delay(ratio, np.ones_like(m), stages),
    ):
        assert np.isfinite(found).all()


def test_decay_time_and_damping_are_those_of_the_root():
    # r^2 + 2 r + 1 + 15 = 0 has r = -1 +- i sqrt(15).
    one = system(15.0, 1.0, 1.0, 1.0, 1)
    np.testing.assert_allclose(lb.stability.decay_time(one), 1.0, rtol=1e-15)
    np.testing.assert_allclose(lb.stability.damping_ratio(one), 0.25, rtol=1e-15)
    real = system(1.0, 0.1, 1.0, 1.0, 100)
    np.testing.assert_allclose(lb.stability.decay_time(real), 1 / 1.4164364299286305, rtol=1e-14)
    assert lb.stability.damping_ratio(real) == 1.0
    grows = system(15.0, 1.0, 1.0, 1.0, 2)
    root = 0.30415780665979303 + 3.364389094717527j
    assert lb.stability.decay_time(grows) == np.inf
    np.testing.assert_allclose(
        lb.stability.damping_ratio(grows), -root.real / abs(root), rtol=1e-13
    )


def test_gradients_of_decay_time_and_damping_are_those_of_the_implicit_root():
    def measures(sensitivity):
        whole = system(15.0, sensitivity, 1.0, 1.0, 2)
        return jnp.stack([lb.stability.decay_time(whole), lb.stability.damping_ratio(whole)])

    def root(gain):
        transform = partial(closed_forms.erlang_transform, 1.0, 2)
        return closed_forms.root_near(transform, 1.0, 15 * closed_forms.exact(gain), -0.3 + 2.2j)

    slopes = jax.jacfwd(measures)(0.3)
    wanted = [
        mp.diff(lambda g: -1 / root(g).real, 0.3),
        mp.diff(lambda g: -root(g).real / abs(root(g)), 0.3),
    ]
    np.testing.assert_allclose(slopes, [float(v) for v in wanted], rtol=1e-12)
    # Beyond the boundary the time is infinite and stays so.
    assert jax.jacfwd(measures)(1.0)[0] == 0.0


@pytest.mark.parametrize("function", ["best_sensitivity", "best_delay"])
def test_other_laws_and_rules_are_sent_to_the_search(function):
    best = getattr(lb.stability, function)
    law = lb.PhaseType([1.0], [[-1.0]])
    for delay, routing, complaint in [
        (law, lb.Logit(1.0), "`delay` must be Erlang or Deterministic for the closed form, "
         "got PhaseType: find it with `jaxlb.stability.search` instead."),
        (lb.Erlang(1.0, 1), lb.WeightedLogit(1.0, [1.0]), "`routing` must be Logit for the closed "
         "form, got WeightedLogit: find it with `jaxlb.stability.search` instead."),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=f"^{re.escape(complaint)}$"):
            best(lb.System(1.0, 1.0, delay, routing))
    with pytest.raises(ValueError, match=r"^`num_servers` must be at least 2 here, got 1\.$"):
        best(lb.System(1.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0), 1))


def test_a_new_number_of_stages_does_not_recompile():
    traces = []

    @jax.jit
    def both(stages):
        traces.append(stages)
        best = lb.stability.erlang_best_gain(1.0, 1.0, stages)
        return best.value + lb.stability.erlang_best_delay(1.0, 1.0, stages).value

    for stages in (1.0, 2.0, 2.5, 1e6, np.inf):
        both(stages)
    assert len(traces) == 1
