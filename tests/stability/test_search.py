"""The search for the fastest decay, against closed forms of the optimum."""

import inspect
import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxlb as lb
from jaxlb.stability import search


class OfSensitivity(eqx.Module):
    """System of a sensitivity, with no abscissa below `floor`.

    Its numbers are arrays, so that new ones do not compile again.
    """

    service_rate: jax.Array
    mean: jax.Array
    floor: jax.Array
    stages: float = eqx.field(static=True)

    def __call__(self, sensitivity):
        infinite = np.isinf(self.stages)
        delay = lb.Deterministic(self.mean) if infinite else lb.Erlang(self.mean, int(self.stages))
        arrival_rate = jnp.where(sensitivity < self.floor, jnp.nan, 2.0)
        return lb.System(arrival_rate, self.service_rate, delay, lb.Logit(sensitivity))


def of_sensitivity(service_rate, mean, stages, floor=-1.0, dtype: Any = float):
    service_rate, mean, floor = (jnp.array(value, dtype) for value in (service_rate, mean, floor))
    return OfSensitivity(service_rate, mean, floor, stages)


class OfBoth(eqx.Module):
    arrival_rate: jax.Array

    def __call__(self, p):
        return lb.System(self.arrival_rate, 1.0, lb.Erlang(p["mean"], 5), lb.Logit(p["theta"]))


def best_sensitivity(arrival_rate, service_rate, mean, stages):
    """kappa* / (lambda D), and the abscissa there, for gamma > mu."""
    m = service_rate * mean
    if np.isinf(stages):
        return np.exp(-1 - m) / (arrival_rate * mean), -(service_rate + 1 / mean)
    kappa = ((stages - m) / (stages + 1)) ** (stages + 1)
    return kappa / (arrival_rate * mean), -stages * (service_rate + 1 / mean) / (stages + 1)


def assert_path_is_sound(result, lower, upper):
    assert result.abscissa == result.path.abscissa.min()
    for values in jax.tree.leaves(result.path.parameters):
        assert len(values) == len(result.path.abscissa)
        assert np.all((values >= lower) & (values <= upper))


@pytest.mark.parametrize("stages", [2, 5, 20, np.inf])
def test_search_reaches_the_closed_form_from_six_decades(stages):
    rng = np.random.default_rng(17)
    for start in 10 ** rng.uniform(-3, 3, 10):
        mean = 10 ** rng.uniform(-1, 1)
        service_rate = rng.uniform(0.05, 0.9) * min(stages, 4) / mean
        theta, abscissa = best_sensitivity(2.0, service_rate, mean, stages)
        make = of_sensitivity(service_rate, mean, stages)
        result = search(make, start * theta, lower=0, upper=1e6 * theta)
        # Asked for; met to 2e-15 in theta, and its square root in the abscissa.
        np.testing.assert_allclose(result.parameters, theta, rtol=1e-6)
        np.testing.assert_allclose(result.abscissa, abscissa, rtol=1e-6)
        assert result.double_root
        assert result.reached is None
        assert result.path.parameters[0] == start * theta
        assert_path_is_sound(result, 0, 1e6 * theta)


def test_search_finds_the_mean_delay_that_beats_none():
    """Its equation is lambda theta D = ((L - mu D) / (L + 1))^(L + 1); L = 5 and lambda theta = 10
    give -26.7 1/s, against -11 without delay. From 3 s a shorter delay is worse at first, so that
    it is the bound that leads there. The sensitivity is held by equal bounds."""
    result = search(
        OfBoth(jnp.array(1.0)),
        {"mean": 3.0, "theta": 10.0},
        lower={"mean": 1e-4, "theta": 10.0},
        upper={"mean": 10.0, "theta": 10.0},
    )
    mean = float(result.parameters["mean"])
    assert result.parameters["theta"] == 10
    # Newton to rounding; its square root.
    np.testing.assert_allclose(10 * mean, ((5 - mean) / 6) ** 6, rtol=1e-9)
    np.testing.assert_allclose(result.abscissa, -5 / 6 * (1 + 1 / mean), rtol=1e-6)
    assert result.double_root


LOWER, UPPER = {"mean": 0.2, "theta": 0.0}, {"mean": 10.0, "theta": 50.0}


def test_joint_optimum_on_a_bound():
    """The shorter the delay the better, with the sensitivity that suits it."""
    result = search(OfBoth(jnp.array(1.0)), {"mean": 3.0, "theta": 0.02}, lower=LOWER, upper=UPPER)
    theta, abscissa = best_sensitivity(1.0, 1.0, 0.2, 5)
    assert result.parameters["mean"] == 0.2
    np.testing.assert_allclose(result.parameters["theta"], theta, rtol=1e-6)
    np.testing.assert_allclose(result.abscissa, abscissa, rtol=1e-6)
    assert result.double_root


def test_joint_optimum_on_a_linear_constraint():
    """10 D >= 3 + theta / 10: on it and on the curve of double roots, where one number is free."""
    make, rows, limits = OfBoth(jnp.array(1.0)), [[-10.0, 0.1], [0.0, 1.0]], [-3.0, 4.0]
    result = search(
        make, {"mean": 1.0, "theta": 0.02}, lower=LOWER, upper=UPPER, constraints=(rows, limits)
    )
    mean, theta = float(result.parameters["mean"]), float(result.parameters["theta"])
    np.testing.assert_allclose(10 * mean - theta / 10, 3, rtol=1e-9)
    np.testing.assert_allclose(theta, best_sensitivity(1.0, 1.0, mean, 5)[0], rtol=1e-6)
    np.testing.assert_allclose(result.abscissa, -5 / 6 * (1 + 1 / mean), rtol=1e-6)
    path = result.path.parameters
    beyond = np.array([path["mean"], path["theta"]]).T @ np.transpose(rows) - limits
    # Rounding of numbers of up to 100.
    assert beyond.max() < 1e-12


def test_a_start_on_a_constraint_and_on_a_bound_moves_off_them():
    make = OfBoth(jnp.array(1.0))
    result = search(
        make,
        {"mean": 2.0, "theta": 0.0},
        lower={"mean": 0.5, "theta": 0.0},
        upper={"mean": 10.0, "theta": 50.0},
        constraints=([[1.0, 1.0]], [2.0]),
    )
    theta, abscissa = best_sensitivity(1.0, 1.0, 0.5, 5)
    np.testing.assert_allclose(result.parameters["mean"], 0.5, rtol=1e-6)
    np.testing.assert_allclose(result.parameters["theta"], theta, rtol=1e-6)
    np.testing.assert_allclose(result.abscissa, abscissa, rtol=1e-6)


def test_slow_stages_are_best_left_without_feedback():
    """gamma <= mu: theta = 0, the bound, and abscissa -gamma."""
    for mean in (2.0, 5.0):
        result = search(of_sensitivity(2.5, mean, 5), 0.7, lower=0, upper=10)
        assert result.parameters == 0
        np.testing.assert_allclose(result.abscissa, -5 / mean, rtol=1e-15)


def test_one_stage_has_a_flat_set_of_optima():
    """Any theta >= (1 - m)^2 / (4 lambda D)."""
    make, least = of_sensitivity(3.0, 2.0, 1), (1 - 6) ** 2 / 16
    for start in (1e-3, 9.0):
        result = search(make, start, lower=0, upper=10)
        np.testing.assert_allclose(result.abscissa, -(3 + 0.5) / 2, rtol=1e-14)
        assert result.parameters >= least
    result = search(make, 0.1, lower=0, upper=1)
    assert result.parameters == 1
    # The quadratic's root.
    np.testing.assert_allclose(result.abscissa, -1.75 + np.sqrt(1.25**2 - 1), rtol=1e-14)
    assert not result.double_root


def test_a_target_ends_the_search_or_is_said_to_be_out_of_reach():
    make = of_sensitivity(1.0, 1.0, 2)
    result = search(make, 1.0, lower=0, upper=10, target=-1.2)
    assert result.reached is True
    assert result.abscissa <= -1.2
    assert np.all(result.path.abscissa[:-1] > -1.2)
    assert_path_is_sound(result, 0, 10)
    result = search(make, 1.0, lower=0, upper=10, target=-1.4)
    assert result.reached is False
    np.testing.assert_allclose(result.abscissa, -4 / 3, rtol=1e-6)
    # Already there.
    assert len(search(make, 0.01, lower=0, upper=10, target=-0.5).path.abscissa) == 1


def test_a_region_without_an_abscissa_is_stepped_back_from():
    """NaN below 0.8 of the optimum, which the descent runs into."""
    theta, abscissa = best_sensitivity(2.0, 1.0, 1.0, 2)
    make = of_sensitivity(1.0, 1.0, 2, floor=0.8 * theta)
    result = search(make, 5.0, lower=0, upper=10)
    np.testing.assert_allclose(result.parameters, theta, rtol=1e-6)
    np.testing.assert_allclose(result.abscissa, abscissa, rtol=1e-6)
    assert np.isfinite(result.path.abscissa).all()
    assert result.path.parameters.min() >= 0.8 * theta
    # Most of the hundred steps are left after the first that is stepped back from.
    assert len(result.path.abscissa) > 90
    with pytest.raises(ValueError, match=r"^`arrival_rate` must be positive and finite, got nan"):
        search(make, 0.1 * theta, lower=0, upper=10)


def test_several_weights_are_tuned_together():
    """Where more than two roots meet; the best known is -4.10722, by differential evolution over
    200 generations outside this test."""

    def make(p):
        rule = lb.WeightedLogit(p["theta"], p["weights"])
        return lb.System(15.0, 1.0, lb.Erlang(1.0, 2), rule)

    start = {"theta": 0.3, "weights": jnp.zeros(2)}
    lower, upper = {"theta": 0.0, "weights": -1.0}, {"theta": 0.5, "weights": 2.0}
    result = search(make, start, lower=lower, upper=upper)
    p = jax.tree.map(np.asarray, result.parameters)
    matrix = np.array([[-1.0, 0, 2], [0, -2, 0], [0, 2, -2]])
    matrix[1] -= 15 * p["theta"] * np.array([1, *p["weights"]])
    # A triple root moves with the cube root of what moves it: 1e-2 is a millionth of an entry.
    assert -4.108 < result.abscissa < -4.107 + 1e-2
    np.testing.assert_allclose(result.abscissa, np.real(np.linalg.eigvals(matrix)).max(), rtol=1e-6)
    again = search(make, start, lower=lower, upper=upper)
    assert again.abscissa == result.abscissa
    assert np.array_equal(again.parameters["weights"], result.parameters["weights"])


def test_single_precision_finds_the_same():
    make = of_sensitivity(1.0, 1.0, 2, dtype=jnp.float32)
    theta, abscissa = best_sensitivity(2.0, 1.0, 1.0, 2)
    result = search(make, jnp.float32(1.0), lower=0, upper=10)
    assert result.parameters.dtype == jnp.float32
    # Single precision; its square root.
    np.testing.assert_allclose(result.parameters, theta, rtol=1e-5)
    np.testing.assert_allclose(result.abscissa, abscissa, rtol=1e-3)
    assert result.double_root


def test_a_rule_that_does_not_share_alike_has_no_start():
    def make(theta):
        def uneven(queue):
            return jnp.array([0.7, 0.3]) + 0 * queue

        return lb.System(1.0, 1.0, lb.Erlang(theta, 2), uneven)

    message = "`start` must have a finite spectral abscissa with finite slopes."
    with pytest.raises(ValueError, match=re.escape(message)):
        search(make, 1.0, lower=0, upper=10)


def test_a_rule_that_hides_its_parameters_is_refused():
    def make(theta):
        def closure(queue):
            return jax.nn.softmax(-theta * queue)

        return lb.System(15.0, 1.0, lb.Erlang(1.0, 2), closure)

    with pytest.raises(ValueError, match=r"^`routing` must hold the parameters to differentiate"):
        search(make, 1.0, lower=0, upper=10)


def test_a_users_own_loop_with_adam_descends_without_nan():
    """A constant rate chatters about the optimum, where the slope has no bound, some 1e-4 off."""
    adam = optax.adam(optax.cosine_decay_schedule(0.2, 300))

    def abscissa(log_theta):
        rule = lb.Logit(jnp.exp(log_theta))
        return lb.stability.spectral_abscissa(lb.System(15.0, 1.0, lb.Erlang(1.0, 2), rule))

    @jax.jit
    def descend(log_theta):
        def step(carry, _):
            log_theta, state = carry
            value, slope = jax.value_and_grad(abscissa)(log_theta)
            change, state = adam.update(slope, state)
            return (optax.apply_updates(log_theta, change), state), value

        return jax.lax.scan(step, (log_theta, adam.init(log_theta)), length=300)[1]

    values = descend(jnp.array(0.0))
    assert np.isfinite(values).all()
    np.testing.assert_allclose(values[0], 0.304157806659793, rtol=1e-14)
    assert -4 / 3 <= values.min() < -4 / 3 + 1e-3


GOOD = {"make_system": of_sensitivity(1.0, 1.0, 2), "start": 1.0, "lower": 0, "upper": 10}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"start": 11.0}, "`start` must be within its bounds, got [11.]."),
        ({"start": np.nan}, "`start` must be finite, got nan."),
        ({"start": {}}, "`start` must hold numbers or vectors, got {}."),
        ({"lower": 20}, "`lower` must be no more than `upper`, [10.], got [20.]."),
        ({"lower": {"a": 0}}, "`lower` must be a number or like `start`, got {'a': 0}."),
        ({"upper": np.nan}, "`upper` must be numbers, got [nan]."),
        ({"target": np.inf}, "`target` must be finite, got inf 1/s."),
        ({"steps": 0}, "`steps` must be an integer of at least 1, got 0."),
        ({"learning_rate": 0.0}, "`learning_rate` must be positive and finite, got 0.0."),
        ({"constraints": ([[1.0]], [0.5])}, "`start` must meet the constraints, got [1.]."),
        ({"constraints": ([[1.0, 2.0]], [0.5])}, "`constraints[0]` must have shape (any, 1)"),
        ({"make_system": lambda _: 3.0}, "`make_system(start)` must be of type System, got 3.0."),
    ],
)
def test_a_bad_argument_is_named(change, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)):
        search(**(GOOD | change))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"constraints": 3}, "`constraints` must be a pair (A, b), got 3."),
        ({"make_system": 3}, "`make_system` must map parameters to a System, got 3."),
    ],
)
def test_an_argument_of_another_type_is_named(change, complaint):
    # As users have it, without the types that tests check.
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}$"):
        inspect.unwrap(search)(**(GOOD | change))
