import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

import jaxlb as lb

from .. import closed_forms

pytestmark = pytest.mark.usefixtures("quick_compilation")

TIMES = np.array([0.0, 0.1, 0.7, 2.0, 5.0])
# lambda theta, mu, D.
CASES = {
    "complex pair": (15.0, 1.0, 1.0),
    "slow stage": (10.0, 1.0, 4.0),
    "real roots": (0.1, 1.0, 0.2),
    "real roots, slow stage": (0.1, 1.0, 4.0),
    "nearly double root": (0.5625 + 1e-9, 1.0, 4.0),
    "double root": (0.5625, 1.0, 4.0),
    "roots far apart": (0.1, 1.0, 1e-3),
    "no feedback": (0.0, 1.0, 0.5),
    "no feedback, double root": (0.0, 1.0, 1.0),
}
cases = pytest.mark.parametrize("name", CASES)


def system(gain, service_rate, mean):
    return lb.System(2.0, service_rate, lb.Erlang(mean, 1), lb.Logit(gain / 2.0))


@cases
def test_imbalance_is_the_matrix_exponential(name):
    gain, service_rate, mean = CASES[name]
    found = lb.stability.exponential_imbalance(system(gain, service_rate, mean), TIMES, 0.7, -0.4)
    matrix = closed_forms.difference_matrix(gain, service_rate, mean, 1)
    wanted = [(expm(matrix * t) @ [0.7, -0.4])[0] for t in TIMES]
    # Rounding of numbers below one; a dozen squarings of it in the matrix exponential.
    np.testing.assert_allclose(found, wanted, atol=3e-15 if mean > 1e-2 else 1e-12)


@cases
def test_roots_are_those_of_equation_19(name):
    gain, service_rate, mean = CASES[name]
    upper, lower = lb.stability.exponential_roots(system(gain, service_rate, mean))
    assert (upper.real, upper.imag) >= (lower.real, lower.imag)
    # A few roundings; those of the larger root are in the smaller one too.
    np.testing.assert_allclose(upper + lower, -(service_rate + 1 / mean), rtol=1e-15)
    rounding = 1e-15 * abs(lower / upper)
    np.testing.assert_allclose(
        upper * lower, (service_rate + gain) / mean, rtol=float(2 * rounding)
    )


def test_first_root_is_the_rightmost():
    for gain, service_rate, mean in CASES.values():
        whole = system(gain, service_rate, mean)
        root = lb.stability.exponential_roots(whole)[0]
        # At a double root dense eigenvalues are accurate to the root of rounding only.
        np.testing.assert_allclose(lb.stability.rightmost_root(whole), root, atol=1e-7)


def test_paper_s_formula_holds_for_a_complex_pair():
    gain, service_rate, mean = CASES["slow stage"]
    stage, x, w = 1 / mean, 0.5, 0.2
    middle = (service_rate + stage) / 2
    omega = np.sqrt(4 * stage * gain - (service_rate - stage) ** 2) / 2
    push = (stage * w + (stage - service_rate) / 2 * x) / omega
    wanted = np.exp(-middle * TIMES) * (x * np.cos(omega * TIMES) + push * np.sin(omega * TIMES))
    found = lb.stability.exponential_imbalance(system(gain, service_rate, mean), TIMES, x, w)
    # Rounding of numbers below one.
    np.testing.assert_allclose(found, wanted, atol=2e-15)


@jax.jit
@jax.value_and_grad
def value_and_slopes(arguments):
    """Of the imbalance at 0.7 s."""
    gain, service_rate, mean, x, w = arguments
    whole = system(gain, service_rate, mean)
    return lb.stability.exponential_imbalance(whole, TIMES, x, w)[2]


@pytest.mark.parametrize("name", ["complex pair", "real roots"])
def test_imbalance_is_differentiable_in_every_argument(name):
    arguments, step = jnp.array([*CASES[name], 0.7, -0.4]), 1e-5
    shifted = arguments + step * jnp.concatenate([jnp.eye(5), -jnp.eye(5)])
    values = np.array([value_and_slopes(near)[0] for near in shifted])
    # Square of the step times third derivatives below 1e2; rounding 1e-15 over the step.
    np.testing.assert_allclose(
        value_and_slopes(arguments)[1], (values[:5] - values[5:]) / (2 * step), atol=3e-9
    )


def test_closed_form_is_for_one_stage_and_the_paper_s_rule_only():
    two = lb.System(1.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0))
    weighted = lb.System(1.0, 1.0, lb.Erlang(1.0, 1), lb.WeightedLogit(1.0, [1.0]))
    for use in [
        lb.stability.exponential_roots,
        lambda system: lb.stability.exponential_imbalance(system, TIMES, 1.0),
    ]:
        with pytest.raises(ValueError, match=r"^`delay` must be Erlang\(mean, 1\), got "):
            use(two)
        with pytest.raises(ValueError, match=r"^`routing` must be Logit, got WeightedLogit\."):
            use(weighted)


@pytest.mark.parametrize("name", ["queue", "in_transit"])
@pytest.mark.parametrize("value", [np.nan, np.inf, [1.0], "1", True, 1j, None], ids=repr)
def test_start_is_a_finite_number(name, value):
    start = {"queue": 1.0, "in_transit": 0.0} | {name: value}
    with pytest.raises(ValueError, match=f"^`{name}` must "):
        lb.stability.exponential_imbalance(system(*CASES["complex pair"]), TIMES, **start)
