"""The rightmost root at a fixed cost, against 40-digit arithmetic and itself."""

import re

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import jaxlb as lb

pytestmark = pytest.mark.usefixtures("quick_compilation")


def parameters(rng, size):
    """lambda = 1, mu = m, D = 1, L from 1 to 10^6 and infinity, theta = kappa; wide."""
    stages = np.floor(10 ** rng.uniform(0, 6, size))
    few = rng.random(size) < 0.4
    stages = np.where(few, rng.integers(1, 12, size), stages)
    stages = np.where(rng.random(size) < 0.15, np.inf, stages)
    service = 10 ** rng.uniform(-4, 4, size)
    return np.ones(size), service, np.ones(size), stages, 10 ** rng.uniform(-6, 6, size)


@pytest.fixture(scope="module")
def root():
    return jax.jit(jax.vmap(lambda *p: lb.stability.erlang_root(*p).root))


def abscissa(p):
    return lb.stability.erlang_root(*p).root.real


# Of lambda, mu, D, L and theta: one program each for the whole module.
value, gradient, hessian = (
    jax.jit(abscissa),
    jax.jit(jax.grad(abscissa)),
    jax.jit(jax.hessian(abscissa)),
)


def refined(m, stages, kappa, found):
    """The root of (z + m) (1 + z / L)^L = -kappa next to `found`, and arg p + L arg V over pi."""
    m, kappa, z = mp.mpf(m), mp.mpf(kappa), mp.mpmathify(complex(found))
    s = mp.mpf(0) if np.isinf(stages) else 1 / mp.mpf(int(stages))
    real = found.imag == 0
    for _ in range(8):
        if not s:
            slope, value = 1 + 1 / (z + m), z + mp.log(z + m if not real else -(z + m))
        elif s == 1:
            # One stage is a quadratic, with a root on either side of both -1 and -m.
            value, slope = (z + m) * (1 + z) + kappa, 2 * z + 1 + m
            z -= value / slope
            continue
        else:
            v = 1 + s * z
            slope = 1 / v + 1 / (z + m)
            value = mp.log(v) / s + mp.log(z + m if not real else -(z + m))
        z -= (value - mp.log(kappa) - (0 if real else mp.pi * 1j)) / slope
    return z


def test_root_is_exact_to_rounding_from_one_stage_to_infinity(root):
    mp.mp.dps = 40
    given = parameters(np.random.default_rng(11), 400)
    for m, stages, kappa, found in zip(*(given[n] for n in (1, 3, 4)), root(*given), strict=True):
        exact = refined(m, stages, kappa, found)
        # 4e-14 is stated; a draw may fall near the double root, where half the digits are lost.
        assert abs(exact - mp.mpmathify(complex(found))) < 4e-14 * abs(exact)


@pytest.mark.parametrize("stages", [1, 2, 3, 8, 40])
def test_no_eigenvalue_is_further_right(root, stages):
    """The branch is the right one: LAPACK finds no other root beyond it."""
    rng, size = np.random.default_rng(stages), 400
    m, kappa = 10 ** rng.uniform(-1, 1, size), 10 ** rng.uniform(-1, 2, size)
    found = root(np.ones(size), m, np.ones(size), np.full(size, float(stages)), kappa)
    for n in range(size):
        matrix = np.diag(np.full(stages, float(stages)), -1) - stages * np.eye(stages + 1)
        matrix[0, 0], matrix[0, -1], matrix[1, 0] = -m[n], stages, -kappa[n]
        # LAPACK's own error at 40 stages.
        assert abs(np.real(np.linalg.eigvals(matrix)).max() - float(found[n].real)) < 1e-9 * stages


def test_nothing_is_nan_over_a_million_points_nor_its_gradient():
    given = parameters(np.random.default_rng(12), 200_000)
    value_and_gradient = jax.jit(
        jax.vmap(
            jax.value_and_grad(lambda *p: lb.stability.erlang_root(*p).root.real, (0, 1, 2, 3, 4))
        )
    )
    value, gradient = value_and_gradient(*given)
    assert np.isfinite(value).all()
    for part in gradient[:3] + gradient[4:]:
        assert np.isfinite(part).all()


def test_a_new_number_of_stages_does_not_recompile():
    traces = []

    @jax.jit
    def root(stages):
        traces.append(stages)
        return lb.stability.erlang_root(1.0, 1.0, 1.0, stages, 3.0).root

    for stages in (1.0, 2.0, 2.5, 1e6, np.inf):
        root(stages)
    assert len(traces) == 1


def test_gradients_are_those_of_finite_differences_in_every_argument():
    for p in jnp.array([[3, 1, 0.7, 5, 0.9], [1, 6, 2, 4, 0.5], [1, 0.3, 0.5, 1.5, 0.05]]):
        steps = 1e-6 * jnp.diag(p)
        slopes = jnp.array([value(p + h) - value(p - h) for h in steps]) / (2e-6 * p)
        # Rounding over the step: 1e-16 / 1e-6 of values about one, and the step squared.
        np.testing.assert_allclose(gradient(p), slopes, rtol=1e-7, atol=1e-8)
        bends = jnp.stack([gradient(p + h) - gradient(p - h) for h in steps]) / (2e-6 * p)[:, None]
        np.testing.assert_allclose(hessian(p), bends, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 2e-15), (np.float32, 2e-6)])
@pytest.mark.parametrize("stages", [1 + 1e-8, 1.001, 1.03, 1.2, 1.45, 1.55])
def test_root_of_little_more_than_one_stage_is_exact_beside_a_double_root(stages, dtype, tolerance):
    """mu D > L, where L = 1 has a double root at kappa* = ((m - L) / (L + 1))^(L + 1)."""
    rng = np.random.default_rng(3)
    m = (stages * (1 + 10 ** rng.uniform(-1, 3, 60))).astype(dtype)
    stages = dtype(stages)
    ratio = rng.normal(size=60) * rng.choice([1e-3, 0.1, 1, 5], 60)
    star = (stages + 1) * np.log((m - stages) / (stages + 1))
    kappa = np.exp(star + ratio).astype(dtype)
    one = np.ones_like(m)
    found = lb.stability.erlang_root(one, m, one, stages * one, kappa).root
    with mp.workdps(40):
        for service, gain, root in zip(m, kappa, np.asarray(found), strict=True):
            exact, slope = next_root(root, service, stages, gain)
            # Near the double root the rounding of log kappa counts more, by the slope of the root.
            assert abs(exact / mp.mpmathify(complex(root)) - 1) < tolerance * max(1, slope)


def next_root(root, service, stages, gain):
    """The complex root next to `root`, and what a relative error of log kappa does to it."""
    s, service = 1 / mp.mpf(float(stages)), mp.mpf(float(service))
    target = mp.log(mp.mpf(float(gain))) + mp.pi * 1j
    z, slope = mp.mpmathify(complex(root)), mp.mpf(0)
    for _ in range(10):
        p, v = z + service, 1 + s * z
        slope = p * v / (p + v)
        z -= (mp.log(v) / s + mp.log(p) - target) * slope
    return z, abs(slope / z) * (1 + abs(target))


@pytest.mark.parametrize("service_rate", [0.3, 1.0, 5.0])
def test_a_pair_of_one_stage_keeps_its_abscissa_beside_any_frequency(service_rate):
    for gain in (10.0, 1e12, 1e49):
        root = lb.stability.erlang_root(1.0, service_rate, 1.0, 1.0, gain).root
        # -(mu + gamma) / 2.
        np.testing.assert_allclose(root.real, -(1 + service_rate) / 2, rtol=4e-16)


def test_the_double_root_is_flagged_and_only_that():
    flagged = [
        bool(lb.stability.erlang_root(1.0, 1.0, 1.0, 2.0, theta).double)
        for theta in (1 / 27, 1 / 27 * (1 + 1e-12), 0.03, 0.04)
    ]
    assert flagged == [True, False, False, False]


def test_single_precision_stays_single_and_close(root):
    given = parameters(np.random.default_rng(13), 20_000)
    single = [values.astype(np.float32) for values in given]
    found, exact = root(*single), root(*(values.astype(float) for values in single))
    assert found.dtype == np.complex64
    error = np.abs(found - exact) / np.abs(exact)
    # 3e-5 away from the double root; half the digits near it.
    assert np.quantile(error, 0.999) < 3e-5
    assert error.max() < 2e-3


@pytest.mark.parametrize(
    ("argument", "value", "complaint"),
    [
        ("stages", 0.5, "`stages` must be at least 1, got 0.5."),
        ("stages", np.nan, "`stages` must be at least 1, got nan."),
        ("mean", -1.0, "`mean` must be positive and finite, got -1.0 s."),
        ("sensitivity", np.inf, "`sensitivity` must be non-negative and finite, got inf per job."),
        ("arrival_rate", 0.0, "`arrival_rate` must be positive and finite, got 0.0 1/s."),
    ],
)
def test_a_bad_argument_is_named(argument, value, complaint):
    good = {"arrival_rate": 1.0, "service_rate": 1.0, "mean": 1.0, "stages": 2, "sensitivity": 1.0}
    with pytest.raises(ValueError, match=re.escape(complaint)):
        lb.stability.erlang_root(**(good | {argument: value}))


# 40 000 points are four equal pieces on a CPU; 7 times a prime, 40 607, no number of equal ones.
@pytest.mark.parametrize(("rows", "columns"), [(200, 200), (7, 5801)])
def test_arrays_broadcast_and_long_ones_are_done_in_pieces_alike(root, rows, columns):
    """A grid of points, in pieces on a CPU, against the points one by one."""
    theta, service = np.geomspace(1e-3, 1e3, rows)[:, None], np.geomspace(1e-2, 1e2, columns)
    grid = jax.jit(lambda theta: lb.stability.erlang_root(2.0, service, 1.0, 8, theta))(theta)
    assert grid.root.shape == grid.double.shape == (rows, columns)
    one = np.ones(rows * columns)
    given = 2 * one, np.tile(service, rows), one, 8 * one, np.repeat(theta.ravel(), columns)
    # By the program of another test, the last one filled up with what comes first.
    pieces = [np.resize(values, (3, 20_000)) for values in given]
    alone = np.concatenate([root(*piece) for piece in zip(*pieces, strict=True)])
    # Compiled otherwise, so rounded otherwise.
    np.testing.assert_allclose(grid.root.ravel(), alone[: rows * columns], rtol=1e-13)


def test_the_gradient_in_a_shared_argument_is_the_sum_over_the_points():
    theta = np.geomspace(1e-2, 1e2, 20_000)

    def total(mean):
        return lb.stability.erlang_root(2.0, 1.0, mean, 8, theta).root.real.sum()

    def one(mean, theta):
        return lb.stability.erlang_root(2.0, 1.0, mean, 8, theta).root.real

    # Next to the double root slopes reach 1e4, and half the digits are lost there.
    alone = jax.jit(jax.vmap(jax.grad(one), (None, 0)))(0.7, theta).sum()
    np.testing.assert_allclose(jax.jit(jax.grad(total))(0.7), alone, rtol=1e-7)


def of_arrays(*p):
    return lb.stability.erlang_root(*p).root.real.sum()


def of_a_system(arrival_rate, service_rate, mean, stages, sensitivity):
    system = lb.System(arrival_rate, service_rate, lb.Erlang(mean, 3), lb.Logit(sensitivity))
    return lb.stability.spectral_abscissa(system) + 0 * stages


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("abscissa", "points"), [(of_arrays, ()), (of_arrays, (100_000,)), (of_a_system, ())]
)
def test_on_a_gpu_nothing_leaves_the_device(abscissa, points, dtype):
    """Value and gradient, cross-lowered for CUDA, hold no custom call and no callback."""
    shapes = [jax.ShapeDtypeStruct(points, dtype)] * 5
    work = jax.jit(jax.value_and_grad(abscissa, (0, 1, 2, 3, 4)))
    program = jax.export.export(work, platforms=["cuda"])(*shapes).mlir_module()
    assert "stablehlo.log" in program
    assert "custom_call" not in program
    assert "callback" not in program


def test_arrays_that_do_not_broadcast_are_named():
    complaint = (
        "`arrival_rate`, `service_rate`, `mean`, `sensitivity`, `stages` must broadcast together, "
        "got shapes (), (2,), (), (3,), ()."
    )
    with pytest.raises(ValueError, match=re.escape(complaint)):
        lb.stability.erlang_root(1.0, [1.0, 2.0], 1.0, 2, [1.0, 2.0, 3.0])


@pytest.mark.parametrize("argument", range(5))
@pytest.mark.parametrize("bad", [-1.0, np.nan])
def test_a_traced_argument_out_of_its_domain_is_flagged_and_spares_the_others(argument, bad):
    given = [jnp.array([2.0, 2.0, 3.0]) for _ in range(5)]
    given[argument] = given[argument].at[1].set(bad)
    result, gradient = value_and_gradient(given)
    np.testing.assert_array_equal(result.valid, [True, False, True])
    np.testing.assert_array_equal(np.isnan(result.root), [False, True, False])
    good = np.array([0, 2, 2])
    alone, slope = value_and_gradient([values[good] for values in given])
    np.testing.assert_allclose(result.root[good], alone.root, rtol=1e-14)
    for have, want in zip(gradient, slope, strict=True):
        assert have[1] == 0
        np.testing.assert_allclose(have[good], want, rtol=1e-12)


@jax.jit
def value_and_gradient(given):
    def total(given):
        result = lb.stability.erlang_root(*given)
        return jnp.where(result.valid, result.root.real, 0.0).sum(), result

    gradient, result = jax.grad(total, has_aux=True)(given)
    return result, gradient


def test_without_feedback_second_derivatives_are_those_of_lagranges_series():
    """r = -mu - K f(-mu) + K^2 (f^2)'(-mu) / 2 + ..., in all four of mu, D, L and K."""

    @jax.jit
    @jax.hessian
    def series(p):
        mu, mean, stages, gain = p

        def transform(r):
            return (1 + r * mean / stages) ** -stages

        square = jax.grad(lambda r: transform(r) ** 2)
        return -mu - gain * transform(-mu) + gain**2 * square(-mu) / 2

    for p in jnp.array([[1, 1, 1, 2, 0], [1, 0.5, 2, 5, 0], [1, 3, 1, 20, 0]]):
        np.testing.assert_allclose(hessian(p)[1:, 1:], series(p[1:]), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("gain", [1e-6, 1e-12, 1e-30, 1e-160, 1e-300])
def test_second_derivatives_at_a_small_gain_are_those_without_one(gain):
    small, none = (hessian(jnp.array([1.0, 1.0, 1.0, 2.0, theta])) for theta in (gain, 0.0))
    np.testing.assert_allclose(small, none, rtol=1e-4, atol=50 * gain + 1e-280)


@pytest.mark.parametrize("stages", [1.0, 2.0, 3.0, 3.5, 20.0, np.inf])
def test_second_derivatives_are_finite_at_any_gain_also_none(stages):
    for gain in (0.0, 1e-300, 1e-160, 1e-100, 1e-17, 1.0):
        for service, mean in ((1.0, 1.0), (1.0, 2.0), (1.0, 10.0), (3.0, 0.2)):
            point = jnp.array([2.0, service, mean, stages, gain])
            assert np.isfinite(hessian(point)).all()


def test_one_stage_without_feedback_bends_as_the_quadratic_does():
    """(r + mu) (1 + r D) = -K: r = -1 / D where mu D > 1; here in K and D at mu = 1."""
    bends = np.asarray(hessian(jnp.array([1.0, 1.0, 2.0, 1.0, 0.0])))[np.ix_([4, 2], [4, 2])]
    np.testing.assert_allclose(bends, [[-4, 1], [1, -0.25]], rtol=1e-12)


def test_slope_in_a_tiny_mean_delay_is_kept():
    for mean in (1e-150, 1e-170, 1e-300):
        slope = gradient(jnp.array([1.0, 1.0, mean, 2.0, 1.0]))[2]
        np.testing.assert_allclose(slope, -2.0, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gains_too_small_to_part_the_roots_of_the_stages_are_taken_for_none(dtype):
    """Two roots -gamma +- i a: a^2 = K gamma^2 / (mu - gamma), and half of that over mu - gamma
    is what their real part gains."""
    tiny = np.finfo(dtype).tiny
    for stages, service in ((1, 1.0), (2, 2.0), (2, 30.0), (2, 1e4), (3, 3.0), (3, 30.0)):
        for gain in (0.0, tiny, tiny**0.9, tiny**0.5, tiny**0.25, tiny**0.125):
            arguments = jnp.array([1, service, 1, stages, gain], dtype)
            found = lb.stability.erlang_root(*arguments)
            assert found.valid
            size = (gain / max(service - stages, 1e-3)) ** (1 / stages) + gain ** (1 / (stages + 1))
            assert abs(found.root + stages) <= 2 * stages * size + 4 * np.finfo(dtype).eps * stages
            slopes = gradient(arguments)
            assert np.isfinite(slopes).all()
            assert found.double == (found.root.imag == 0)
            if found.double and stages == 2 and service > 2:
                np.testing.assert_allclose(slopes[4], 2 / (service - 2) ** 2, rtol=1e-5)
            elif found.double:
                assert slopes[4] == 0


def test_products_that_overflow_are_flagged():
    # Those, and those whose square does.
    for dtype, huge in ((np.float64, 1e300), (np.float32, 1e20)):
        found = lb.stability.erlang_root(*(dtype(v) for v in (1, 1, huge, 5, 2)))
        assert not found.valid
        assert np.isnan(found.root)
        found = lb.stability.erlang_root(*(dtype(v) for v in (huge, 1, 1, 2, huge)))
        assert not found.valid
        assert np.isnan(found.root)
        assert not found.double


@pytest.mark.parametrize("service_rate", [1.0, 2.0, 3.0])
def test_one_stage_without_feedback_has_a_finite_slope_in_the_stages(service_rate):
    assert np.isfinite(gradient(jnp.array([15.0, service_rate, 1.0, 1.0, 0.0]))).all()
