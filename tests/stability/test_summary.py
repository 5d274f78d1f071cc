"""The summary against numbers that come from elsewhere."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxlb as lb
from jaxlb.stability import summary
from jaxlb.stability.summary import _by_grids, _OfSensitivity, fastest

pytestmark = pytest.mark.usefixtures("quick_compilation")


def system(mean, stages, sensitivity=1.0, arrival_rate=15.0):
    delay = lb.Deterministic(mean) if np.isinf(stages) else lb.Erlang(mean, stages)
    return lb.System(arrival_rate, 1.0, delay, lb.Logit(sensitivity))


def two_stages(mean, theta):
    return summary(system(mean, 2, theta))


MEANS, THETAS = jnp.array([1.0, 1.0, 0.2]), jnp.array([1.0, 0.3, 0.0])


@pytest.fixture(scope="module")
def batch():
    return jax.jit(jax.vmap(two_stages))(MEANS, THETAS)


def test_two_stages_in_closed_form(batch):
    """lambda 15, mu 1, D 1, L 2, theta 1: root to 30 digits in mpmath, the rest by (22) and (23).

    The cubic (r + 1)(1 + r/2)^2 + K has its boundary at K = 2 m^2/L... = 9 for D = 1, and at
    K = 15 for D^2 - 11 D + 4 = 0.
    """
    found = jax.tree.map(lambda leaf: leaf[0], batch)
    expected = {
        "abscissa": 0.304157806659793045,
        "frequency": 3.36438909471752667,
        "stable": False,
        "decay_time": np.inf,
        "period": 2 * np.pi / 3.36438909471752667,
        "damping_ratio": -0.304157806659793045 / abs(0.304157806659793045 + 3.36438909471752667j),
        "critical_sensitivity": 0.6,
        "hopf_frequency": np.sqrt(8),
        "hopf_period": 2 * np.pi / np.sqrt(8),
        "unstable_means": ((11 - np.sqrt(105)) / 2, (11 + np.sqrt(105)) / 2, True),
        "safe_gain": 8.0,
        "safe_sensitivity": 8 / 15,
        "best_sensitivity": (1 / 27 / 15, -4 / 3),
    }
    assert set(expected) | {"margins"} == set(found._asdict())
    for name, value in expected.items():
        # Rounding, some operations deep.
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-13, err_msg=name)
    np.testing.assert_allclose(found.margins.gain, 0.6, rtol=1e-13)


def test_a_stable_system_has_a_decay_time(batch):
    """By NumPy's eigenvalues of A_L."""
    found = jax.tree.map(lambda leaf: leaf[1], batch)
    matrix = np.array([[-1.0, 0, 2], [-4.5, -2, 0], [0, 2, -2]])
    root = max(np.linalg.eigvals(matrix), key=lambda r: (r.real, r.imag))
    assert found.stable
    # LAPACK's rounding.
    np.testing.assert_allclose(found.decay_time, -1 / root.real, rtol=1e-12)
    np.testing.assert_allclose(found.period, 2 * np.pi / root.imag, rtol=1e-12)


def test_infinities_where_nothing_is_lost():
    """One stage; without sensitivity nothing turns."""
    found = eqx.filter_jit(summary)(system(4.0, 1, 0.0, 10.0))
    never = "critical_sensitivity", "hopf_frequency", "hopf_period", "safe_gain", "period"
    assert all(np.isinf(getattr(found, name)) for name in never)
    assert np.isinf(found.unstable_means.lower)
    # (1 - m)^2 / (4 lambda D) and -(mu + gamma) / 2.
    np.testing.assert_allclose(found.best_sensitivity, (9 / 160, -0.625), rtol=1e-14)


def test_constant_delay_as_published():
    """Pender, Rand and Wesson (2017): K = 5 has critical delay 0.3617394710 at 4.8989795 rad/s."""
    found = eqx.filter_jit(summary)(system(0.3617394710, np.inf, 5 / 15))
    # Their digits.
    np.testing.assert_allclose(found.unstable_means.lower, 0.3617394710, rtol=1e-9)
    np.testing.assert_allclose(found.frequency, 4.8989795, rtol=1e-7)
    np.testing.assert_allclose(found.hopf_period, 2 * np.pi / 4.8989795, rtol=1e-7)
    np.testing.assert_allclose(found.safe_gain, 1, rtol=1e-14)


def test_there_is_no_nan_in_slopes():
    def total(theta):
        """What the summary itself computes, where it is finite."""
        found = two_stages(1.0, theta)
        numbers = found.period, found.hopf_period, found.safe_sensitivity, found.decay_time
        return sum(jnp.where(jnp.isfinite(n), n, 0.0) for n in numbers)

    assert np.isfinite(jax.jit(jax.vmap(jax.grad(total)))(THETAS)).all()


def test_a_law_without_a_closed_form_gets_its_best_sensitivity_by_search():
    """`MixedErlang` that is two stages in all but type."""
    delay = lb.MixedErlang(1.0, jnp.array([0.0, 1.0]))
    found = fastest(lb.System(15.0, 1.0, delay, lb.Logit(1.0)))
    # The double root's square root of the precision.
    np.testing.assert_allclose(found, (1 / 27 / 15, -4 / 3), rtol=1e-6)


def test_the_best_sensitivity_by_abscissas_alone():
    """What a law without phases takes, of systems with a formula: at a double root, and at zero."""
    for mean, upper, truth in ((1.0, 0.6, (1 / 27 / 15, -4 / 3)), (4.0, 0.6, (0, -0.5))):
        found = _by_grids(_OfSensitivity(system(mean, 2)), upper)
        # The last grid is 2e-11 wide; at the double root the square root of that.
        np.testing.assert_allclose(found, truth, rtol=1e-5)


def test_single_precision_stays_single():
    single = lb.System(
        jnp.float32(15), jnp.float32(1), lb.Erlang(jnp.float32(1), 2), lb.Logit(jnp.float32(1))
    )
    numbers = jax.tree.leaves(jax.eval_shape(summary, single))
    assert {leaf.dtype for leaf in numbers} == {jnp.dtype(jnp.float32), jnp.dtype(bool)}


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (
            lb.System(1.0, 1.0, lb.Erlang(1.0, 2), lb.WeightedLogit(1.0, [0.0, 0.0])),
            "`routing` must be Logit, got WeightedLogit.",
        ),
        (
            lb.System(1.0, [1.0, 2.0], lb.Erlang(1.0, 2), lb.Logit(1.0)),
            "`service_rate` must be the same for every server, got [1. 2.] 1/s.",
        ),
    ],
)
def test_a_system_without_a_summary_is_named(bad, complaint):
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}$"):
        summary(bad)


def test_a_traced_law_without_a_closed_form_points_to_the_search():
    def traced(theta):
        delay = lb.MixedErlang(1.0, jnp.array([0.5, 0.5]))
        return summary(lb.System(15.0, 1.0, delay, lb.Logit(theta)))

    with pytest.raises(ValueError, match=r"find it with `jaxlb.stability.search`"):
        jax.make_jaxpr(traced)(1.0)
