"""All roots with an Erlang delay, against high-precision polynomial roots and identities."""

import re
from collections import Counter
from functools import cache

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import jaxlb as lb

# Few stages of either parity, and many; each compiles once.
STAGES = [1, 2, 9]


def system(p, stages):
    """`p`: lambda theta, mu, D."""
    gain, service_rate, mean = p
    return lb.System(1.0, service_rate, lb.Erlang(mean, stages), lb.Logit(gain))


TRACES = Counter()


@cache
def batch(stages):
    """All roots for arrays of lambda theta and mu, with D = 1."""

    def roots(gain, mu):
        TRACES[stages] += 1
        return lb.stability.all_roots(system((gain, mu, 1.0), stages))

    return jax.jit(jax.vmap(roots))


def double_root_gain(m, stages):
    """kappa at which the double root is, for D = 1."""
    return (abs(stages - m) / (stages + 1)) ** (stages + 1)


def points(stages):
    """kappa and m: wide, around the double root, and near gamma = mu; 30 of each together."""
    rng = np.random.default_rng(stages)
    m = 10 ** rng.uniform(-3, 3, 30)
    m[20:] = stages * 10 ** rng.uniform(-0.5, 0.5, 10)
    m[28:] = stages, stages * (1 + 1e-9)
    kappa = 10 ** rng.uniform(-16, 6, 30)
    kappa[:4], m[:4] = [1e-16, 1e-16, 1e6, 1e6], [1e-3, 1e3, 1e-3, 1e3]
    kappa[8:24] = double_root_gain(m[8:24], stages) * np.exp(np.linspace(-2, 2.5, 16))
    return kappa, m


def exact_roots(kappa, m, stages):
    """By high-precision polynomial roots in V = 1 + z / L, sorted."""
    with mp.workdps(50):
        c = (stages - mp.mpf(m)) / stages
        ascending = [mp.mpf(kappa) / stages] + [0] * (stages - 1) + [-c, 1]
        turned = mp.polyroots(ascending, maxsteps=2000, extraprec=100, asc=True)
        return sorted(
            (stages * (v - 1) for v in turned), key=lambda z: (-mp.nint(z.real * 1e40), -z.imag)
        )


@pytest.mark.parametrize("stages", STAGES)
def test_roots_are_those_of_the_polynomial_in_order(stages):
    kappa, m = points(stages)
    found = batch(stages)(kappa, m)
    assert found.shape == (30, stages + 1)
    for n in range(30):
        exact = exact_roots(kappa[n], m[n], stages)
        assert (np.diff(found[n].real) <= 4e-16 * abs(found[n][1:])).all()
        for root, wanted in zip(found[n], exact, strict=True):
            # 3e-15 is stated; the nearest gain is 10 % from the double root.
            assert abs(mp.mpmathify(complex(root)) - wanted) < 3e-15 * abs(wanted)


@pytest.mark.parametrize("stages", STAGES)
def test_the_first_is_the_rightmost_root(stages):
    kappa, m = points(stages)
    first = lb.stability.erlang_root(1.0, m, 1.0, stages, kappa).root
    # The same number, in another order of operations.
    np.testing.assert_allclose(batch(stages)(kappa, m)[:, 0], first, rtol=5e-15)


@pytest.mark.parametrize("stages", STAGES)
def test_beside_the_double_root_half_the_digits_are_right(stages):
    """All but the two that meet keep theirs."""
    m = np.tile([0.3 * stages, 3.0 * stages], 15)
    gap = np.repeat(np.geomspace(1e-14, 1e-3, 15), 2) * np.resize([1, 1, -1, -1], 30)
    kappa = double_root_gain(m, stages) * (1 + gap)
    found = batch(stages)(kappa, m)
    for n in range(30):
        exact = exact_roots(kappa[n], m[n], stages)
        error = [abs(mp.mpmathify(complex(a)) - b) for a, b in zip(found[n], exact, strict=True)]
        error = np.array(error, float) / abs(found[n])
        # Rounding of kappa, L + 1 powers of it, divided by what the slope is at a distance `gap`.
        assert error.max() < 4e-16 * (stages + 1) / max(abs(gap[n]), 1e-15) ** 0.5
        assert np.sort(error)[:-2].max(initial=0) < 3e-15


@pytest.mark.parametrize("m", [0.3, 300.0, 3000.0])
@pytest.mark.parametrize("kappa", [1e-16, 0.2, 1e6])
def test_a_thousand_factors_multiply_to_the_polynomial(kappa, m):
    """prod(x - z) = (x + m) (x + L)^L + kappa L^L at several x: by Vieta no root is missing."""
    stages = 1000
    roots = np.asarray(batch(stages)(np.full(30, kappa), np.full(30, m))[0])
    with mp.workdps(40):
        L = mp.mpf(stages)
        for x in (0, 2, 500j, -1500 + 300j, 5000, -6000):
            wanted = mp.log((x + mp.mpf(m)) * (1 + x / L) ** stages + mp.mpf(kappa))
            product = mp.fsum(mp.log(x - mp.mpmathify(complex(z))) for z in roots)
            turns = (product - stages * mp.log(L) - wanted) / (2j * mp.pi)
            # Each of 1001 factors has the error of its root, 1e-15 of |z| over the distance.
            size = np.sum(abs(roots) / abs(x - roots))
            assert float(abs(turns - mp.nint(turns.real))) < 1e-15 * size
    # And by the trace.
    assert abs(roots.sum() + m + stages**2) < 1e-15 * abs(roots).sum()


@pytest.mark.parametrize("stages", STAGES)
def test_with_equal_rates_roots_lie_evenly_on_a_circle(stages):
    kappa = np.geomspace(1e-16, 1e6, 30)
    found = batch(stages)(kappa, np.full(30, float(stages)))
    odd = np.repeat(2 * np.arange(stages // 2 + 1) + 1, 2)
    angles = (odd * np.tile([1, -1], len(odd) // 2))[: stages + 1] * np.pi / (stages + 1)
    radius = (kappa / stages) ** (1 / (stages + 1))
    wanted = stages * (radius[:, None] * np.exp(1j * angles) - 1)
    # Rounding of the polar form, in units of L.
    np.testing.assert_allclose(found, wanted, rtol=1e-14, atol=2e-15 * stages)


@pytest.mark.parametrize("stages", STAGES)
def test_without_feedback_they_are_the_service_rate_and_the_stage_rate(stages):
    m = np.geomspace(1e-3, 1e3, 30)
    found = batch(stages)(np.zeros(30), m)
    wanted = -np.sort(np.column_stack([m, np.full((30, stages), float(stages))]), axis=1)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("stages", [9])
def test_single_precision_stays_single_and_close(stages):
    kappa, m = (values.astype(np.float32) for values in points(stages))

    @jax.jit
    @jax.vmap
    def roots(gain, mu):
        one = jnp.float32(1)
        delay, rule = lb.Erlang(one, stages), lb.Logit(gain)
        return lb.stability.all_roots(lb.System(one, mu, delay, rule))

    found = roots(kappa, m)
    assert found.dtype == np.complex64
    # 1e-6 is stated, but for a rounding of kappa beside the double root.
    wanted = batch(stages)(kappa.astype(float), m.astype(float))
    np.testing.assert_allclose(found, wanted, rtol=3e-6)


def parts(stages):
    """Real and imaginary parts in (lambda theta, mu, D)."""

    def roots(p):
        roots = lb.stability.all_roots(system(p, stages))
        return jnp.concatenate([roots.real, roots.imag])

    return roots


@pytest.fixture(scope="module", params=[3, 4])
def derivatives(request):
    """L, and a function to value and derivatives by reverse mode."""
    whole = parts(request.param)

    def twice(p):
        value = whole(p)
        return value, value

    gradient = jax.jacrev(twice, has_aux=True)
    return request.param, jax.jit(lambda p: gradient(p)[::-1])


# gamma above and below mu; a real pair and none.
POINTS = [(0.9, 1.0, 0.7), (0.02, 1.0, 0.7), (0.5, 9.0, 2.0), (1e-4, 0.5, 9.0)]


@pytest.mark.parametrize("p", POINTS)
def test_derivatives_are_those_of_finite_differences(derivatives, p):
    p, of = jnp.array(p), derivatives[1]
    steps = 1e-5 * jnp.diag(p)
    wanted = jnp.stack([of(p + h)[0] - of(p - h)[0] for h in steps], -1) / (2e-5 * p)
    # Rounding over the step, 1e-15 / 1e-5 of the value over p, and the step squared.
    floor = 1e-8 * np.max(abs(wanted), axis=0)
    assert (abs(of(p)[1] - wanted) < 1e-7 * abs(wanted) + floor).all()


def test_forward_mode_agrees_with_reverse_mode_and_second_derivatives_with_differences():
    @jax.jit
    def along(p, tangent):
        whole = parts(2)
        gradient, second = jax.jvp(jax.jacrev(whole), (p,), (tangent,))
        return gradient, second, jax.jvp(whole, (p,), (tangent,))[1]

    for p in map(jnp.array, POINTS):
        tangent = p * jnp.array([1.0, -0.5, 0.3])
        gradient, second, forward = along(p, tangent)
        # A cancelling sum of three.
        np.testing.assert_allclose(forward, gradient @ tangent, rtol=1e-12, atol=1e-13)
        above, below = (along(p + step * tangent, tangent)[0] for step in (1e-5, -1e-5))
        wanted = (above - below) / 2e-5
        # As for the first derivatives; these change faster.
        floor = 1e-7 * np.max(abs(wanted), axis=0)
        assert (abs(second - wanted) < 1e-6 * abs(wanted) + floor).all()


def test_derivatives_without_feedback_are_one_sided_or_zero(derivatives):
    stages, of = derivatives
    for mu, first in ((0.7, True), (50.0, False)):
        gradient = of(jnp.array([0.0, mu, 0.5]))[1]
        wanted = np.zeros((2 * (stages + 1), 3))
        wanted[: stages + 1, 2] = stages / 0.5**2
        service = 0 if first else stages
        wanted[service] = -((1 - 0.5 * mu / stages) ** -stages), -1, 0
        # A power of four.
        np.testing.assert_allclose(gradient, wanted, rtol=1e-14)


def test_derivatives_at_a_double_root_are_zero(derivatives):
    stages, of = derivatives
    # c = 1 / 2 and gamma = 2 L: the double root is r = -gamma (1 - c L / (L + 1)). Whether a gain
    # beside it is told from it is up to the compiler.
    gain = double_root_gain(0.5 * stages, stages) / 0.5
    for ulps in range(-20, 21, 2):
        p = jnp.array([gain * (1 + ulps * 2.0**-53), stages, 0.5])
        values, gradient = of(p)
        if values[0] == values[1] and values[stages + 1] == 0:
            break
    else:
        pytest.fail("no double root")
    # Rounding of the closed form.
    wanted = -2 * stages * (1 - 0.5 * stages / (stages + 1))
    np.testing.assert_allclose(values[:2], wanted, rtol=1e-15)
    assert (gradient[:2] == 0).all()
    assert np.isfinite(gradient).all()
    assert (gradient[2 : stages + 1] != 0).all()


def test_a_new_number_does_not_recompile():
    for gain, mu in ((1.0, 1.0), (1e-9, 3.0), (0.0, 1.0)):
        batch(2)(np.full(30, gain), np.full(30, mu))
    assert TRACES[2] == 1


def test_on_a_gpu_nothing_leaves_the_device():
    """Value and gradient, cross-lowered for CUDA, hold no custom call and no callback."""

    def total(p):
        return abs(lb.stability.all_roots(system(p, 20))).sum()

    work = jax.jit(jax.value_and_grad(total))
    shape = jax.ShapeDtypeStruct((3,), np.float64)
    program = jax.export.export(work, platforms=["cuda"])(shape).mlir_module()
    assert "stablehlo.log" in program
    assert "custom_call" not in program
    assert "callback" not in program
    # No matrix of the modes, let alone of every pair of them.
    assert "21x21" not in program


@pytest.mark.parametrize(
    ("delay", "rule", "complaint"),
    [
        (
            lb.Deterministic(1.0),
            lb.Logit(1.0),
            "`delay` must be Erlang here, got Deterministic: "
            "it has infinitely many; use `rightmost_root`",
        ),
        (
            lb.MixedErlang(1.0, jnp.array([0.5, 0.5])),
            lb.Logit(1.0),
            "`delay` must be Erlang here, got MixedErlang: use `eigenvalues`",
        ),
        (
            lb.Erlang(1.0, 2),
            lb.WeightedLogit(1.0, jnp.ones(2)),
            "`routing` must be Logit here, got WeightedLogit: use `eigenvalues`",
        ),
    ],
)
def test_another_delay_or_rule_is_named_and_what_to_use(delay, rule, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint + " instead.")):
        lb.stability.all_roots(lb.System(1.0, 1.0, delay, rule))


def test_servers_that_differ_or_are_alone_are_named():
    delay, rule = lb.Erlang(1.0, 2), lb.Logit(1.0)
    with pytest.raises(ValueError, match=r"^`service_rate` must be the same for every server"):
        lb.stability.all_roots(lb.System(1.0, [1.0, 2.0], delay, rule))
    with pytest.raises(ValueError, match=r"^`num_servers` must be at least 2 here, got 1\.$"):
        lb.stability.all_roots(lb.System(1.0, 1.0, delay, rule, num_servers=1))
