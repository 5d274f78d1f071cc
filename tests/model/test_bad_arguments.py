import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import jaxlb as lb


@pytest.fixture(autouse=True)
def _checked_by_jaxlb_alone(monkeypatch):
    """Users run without the type checks of the test suite, so errors must not rest on them."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def system(**changes):
    good = {
        "arrival_rate": 15.0,
        "service_rate": 1.0,
        "delay": lb.Erlang(1.0, 2),
        "routing": lb.Logit(1.0),
    }
    return lb.System(**(good | changes))


POSITIVE = {
    "Erlang": ("mean", lambda mean: lb.Erlang(mean, 2), " s"),
    "MixedErlang": ("mean", lambda mean: lb.MixedErlang(mean, [0.5, 0.5]), " s"),
    "Deterministic": ("mean", lb.Deterministic, " s"),
    "from_mean_cv at 0": ("mean", lambda mean: lb.from_mean_cv(mean, 0.0), " s"),
    "from_mean_cv at 0.5": ("mean", lambda mean: lb.from_mean_cv(mean, 0.5), " s"),
    "from_mean_cv at 0.6": ("mean", lambda mean: lb.from_mean_cv(mean, 0.6), " s"),
    "from_mean_cv at 2": ("mean", lambda mean: lb.from_mean_cv(mean, 2.0), " s"),
    "System": ("arrival_rate", lambda rate: system(arrival_rate=rate), " 1/s"),
    "System's servers": ("service_rate", lambda rate: system(service_rate=rate), " 1/s"),
}
NOT_NEGATIVE = {
    "Logit": ("sensitivity", lb.Logit, " per job"),
    "WeightedLogit": ("sensitivity", lambda theta: lb.WeightedLogit(theta, [1.0]), " per job"),
    "from_mean_cv": ("cv", lambda cv: lb.from_mean_cv(1.0, cv), ""),
}
WHOLE = {
    "Erlang": ("stages", lambda stages: lb.Erlang(1.0, stages)),
    "System": ("num_servers", lambda servers: system(num_servers=servers)),
}
NO_NUMBERS = [True, "1.5", b"1", None, object(), {}, [1.0, None], 10**400]


def assert_rejected(build, value, name, *words):
    """A `ValueError` that names the argument, what it must be, and what it got."""
    with pytest.raises(ValueError, match=f"^`{name}` ") as error:
        build(value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("what", POSITIVE)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1.5, 0.0, 0, -2])
def test_what_must_be_positive_is(what, value):
    name, build, unit = POSITIVE[what]
    assert_rejected(build, value, name, "must be positive and finite, got ", f"{value:g}", unit)


@pytest.mark.parametrize("what", NOT_NEGATIVE)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1.5, -2])
def test_what_must_not_be_negative_is_not(what, value):
    name, build, unit = NOT_NEGATIVE[what]
    assert_rejected(build, value, name, "must be non-negative and finite, got ", f"{value:g}", unit)


@pytest.mark.parametrize("what", POSITIVE | NOT_NEGATIVE)
@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: type(value).__name__)
def test_what_must_be_a_number_is(what, value):
    name, build, _ = (POSITIVE | NOT_NEGATIVE)[what]
    assert_rejected(build, value, name, "must be a number", f"got {value!r}")


@pytest.mark.parametrize("what", POSITIVE | NOT_NEGATIVE)
@pytest.mark.parametrize(
    ("value", "kind"), [(1j, "complex128"), (np.True_, "bool"), (jax.random.key(0), "key<fry>")]
)
def test_what_must_be_real_is(what, value, kind):
    name, build, _ = (POSITIVE | NOT_NEGATIVE)[what]
    assert_rejected(build, value, name, f"must be real, got an array of {kind}")


@pytest.mark.parametrize("what", [what for what in POSITIVE | NOT_NEGATIVE if "'" not in what])
@pytest.mark.parametrize("shape", [(1,), (3,), (0,), (1, 1)])
def test_what_must_be_a_scalar_is(what, shape):
    name, build, _ = (POSITIVE | NOT_NEGATIVE)[what]
    words = "must have shape (), got shape", str(shape), "jax.vmap"
    assert_rejected(build, np.ones(shape), name, *words)


@pytest.mark.parametrize("what", WHOLE)
@pytest.mark.parametrize(
    "value", [0, -1, 1.0, 1.5, np.nan, True, np.True_, "2", None, 1j, np.array([2])], ids=repr
)
def test_what_must_be_a_positive_integer_is(what, value):
    name, build = WHOLE[what]
    assert_rejected(build, value, name, f"must be an integer of at least 1, got {value!r}")


@pytest.mark.parametrize("value", [2, np.int64(2), np.array(2), jnp.int32(2)], ids=repr)
def test_any_kind_of_integer_may_count_stages_or_servers(value):
    assert lb.Erlang(1.0, value).stages == system(num_servers=value).num_servers == 2


@pytest.mark.parametrize(
    ("value", "demand", "got"),
    [
        ([1.0, -1.0], "must be positive and finite", "got [ 1. -1.] 1/s"),
        ([1.0, 0.0], "must be positive and finite", "got [1. 0.] 1/s"),
        ([1.0, np.nan], "must be positive and finite", "nan"),
        ([1.0, 2.0, 3.0], "must have shape (2,)", "got shape (3,)"),
        ([1.0], "must have shape (2,)", "got shape (1,)"),
        ([], "must have shape (2,)", "got shape (0,)"),
        ([[1.0, 2.0]], "must have shape (2,)", "got shape (1, 2)"),
        ([1j, 1.0], "must be real", "complex128"),
        ([True, False], "must be real", "bool"),
        (["x", "y"], "must be a number", "got ['x', 'y']"),
    ],
    ids=repr,
)
def test_service_rates_are_positive_and_one_for_each_server(value, demand, got):
    assert_rejected(lambda rate: system(service_rate=rate), value, "service_rate", demand, got)


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("weights", lambda weights: lb.MixedErlang(1.0, weights)),
        ("initial", lambda initial: lb.PhaseType(initial, np.diag([-1.0, -2.0]))),
    ],
)
@pytest.mark.parametrize(
    ("value", "demand", "got"),
    [
        ([0.5, 0.6], "must be probabilities that sum to 1", "got [0.5 0.6]"),
        ([0.0, 0.0], "must be probabilities that sum to 1", "got [0. 0.]"),
        ([-0.5, 1.5], "must be non-negative and finite", "got [-0.5 1.5]"),
        ([np.nan, 1.0], "must be non-negative and finite", "nan"),
        ([np.inf, 0.0], "must be non-negative and finite", "inf"),
        ([], "must have at least one entry", "got none"),
        (1.0, "must have shape (any,)", "got shape ()"),
        ([[1.0]], "must have shape (any,)", "got shape (1, 1)"),
        ([1j, 1.0], "must be real", "complex128"),
        ([True, False], "must be real", "bool"),
        ("ab", "must be a number", "got 'ab'"),
        (None, "must be a number", "got None"),
    ],
    ids=repr,
)
def test_probabilities_are_a_vector_of_sum_one(name, build, value, demand, got):
    assert_rejected(build, value, name, demand, got)


@pytest.mark.parametrize(
    ("value", "demand", "got"),
    [
        ([[-1.0, 2.0], [0.0, -1.0]], "row sums that are zero or negative", "[[-1. 2.] [ 0. -1.]]"),
        ([[1.0, 0.0], [0.0, -1.0]], "row sums that are zero or negative", "[[ 1. 0.] [ 0. -1.]]"),
        ([[-1.0, -0.5], [0.0, -1.0]], "non-negative off its diagonal", "[[-1. -0.5] [ 0. -1. ]]"),
        ([[-1.0, 1.0], [1.0, -1.0]], "such that every phase leads out", "[[-1. 1.] [ 1. -1.]]"),
        ([[-1.0, 0.0], [0.0, 0.0]], "such that every phase leads out", "[[-1. 0.] [ 0. 0.]]"),
        ([[np.nan, 0.0], [0.0, -1.0]], "finite", "nan"),
        ([[-np.inf, 0.0], [0.0, -1.0]], "finite", "-inf"),
        ([[-1.0]], "must have shape (2, 2)", "got shape (1, 1)"),
        ([-1.0, -1.0], "must have shape (2, 2)", "got shape (2,)"),
        (-np.ones((1, 2, 2)), "must have shape (2, 2)", "got shape (1, 2, 2)"),
        ([[-1j, 0.0], [0.0, -1.0]], "must be real", "complex128"),
        ([[True, False], [False, True]], "must be real", "bool"),
        ("ab", "must be a number", "got 'ab'"),
        (None, "must be a number", "got None"),
    ],
    ids=repr,
)
def test_generator_is_that_of_phases_which_all_lead_out(value, demand, got):
    assert_rejected(lambda g: lb.PhaseType([0.5, 0.5], g), value, "generator", demand, got)


@pytest.mark.parametrize(
    ("value", "demand", "got"),
    [
        ([1.0, np.nan], "must be finite", "nan"),
        ([1.0, -np.inf], "must be finite", "-inf"),
        (1.0, "must have shape (any,)", "got shape ()"),
        ([[1.0, 1.0]], "must have shape (any,)", "got shape (1, 2)"),
        ([1j, 1.0], "must be real", "complex128"),
        ([True, False], "must be real", "bool"),
        ("ab", "must be a number", "got 'ab'"),
        (None, "must be a number", "got None"),
    ],
    ids=repr,
)
def test_weights_on_jobs_in_transit_are_a_finite_vector(value, demand, got):
    assert_rejected(lambda weights: lb.WeightedLogit(1.0, weights), value, "weights", demand, got)


def test_weights_are_as_many_as_the_phases():
    for weights in [[], [1.0], [1.0, 1.0, 1.0]]:
        words = "one entry for each of the delay's 2 phases", f"got {len(weights)}"
        rule = lb.WeightedLogit(1.0, weights)
        assert_rejected(lambda rule: system(routing=rule), rule, "weights", *words)
    rule = lb.WeightedLogit(1.0, [1.0])
    words = "must have phases", "got Deterministic"
    assert_rejected(
        lambda delay: system(delay=delay, routing=rule), lb.Deterministic(1.0), "delay", *words
    )


@pytest.mark.parametrize("value", [1.0, None, "Erlang", lb.Erlang, lb.Logit(1.0)], ids=repr)
def test_delay_is_one_of_the_delays(value):
    words = "must be a delay such as Erlang(mean, stages)", f"got {value!r}"
    assert_rejected(lambda delay: system(delay=delay), value, "delay", *words)


@pytest.mark.parametrize("value", [1.0, None, "Logit", lb.Logit, lb.Erlang(1.0, 2)], ids=repr)
def test_routing_is_a_rule(value):
    words = "must be a rule such as Logit(sensitivity)", f"got {value!r}"
    assert_rejected(lambda routing: system(routing=routing), value, "routing", *words)


@pytest.mark.parametrize(
    ("rule", "signature"),
    [
        (lambda: 1.0, "()"),
        (lambda a, b, c: a + b + c, "(a, b, c)"),
        (lambda *, queue: queue, "(*, queue)"),
    ],
    ids=["none", "three", "keyword"],
)
def test_rule_takes_one_or_two_arguments(rule, signature):
    words = "(queue, in_transit) or (queue) to shares", f"got one with signature {signature}"
    assert_rejected(lambda routing: system(routing=routing), rule, "routing", *words)


def test_fit_asks_for_no_more_than_a_million_stages():
    words = "must be 0 or from 0.001", "got 0.0009"
    assert_rejected(lambda cv: lb.from_mean_cv(1.0, cv), 0.0009, "cv", *words)


def test_what_fixes_a_shape_must_be_concrete():
    words = "fixes an array shape, so it must be concrete", "got "
    assert_rejected(jax.jit(lambda stages: lb.Erlang(1.0, stages).mean), 2, "stages", *words)
    assert_rejected(jax.jit(lambda cv: lb.from_mean_cv(1.0, cv).mean), 0.5, "cv", *words)
    assert_rejected(
        jax.jit(lambda servers: system(num_servers=servers).arrival_rate), 2, "num_servers", *words
    )


def test_traced_values_are_taken_on_trust():
    """There is no number to look at under `jit`; shapes are checked all the same."""
    assert jnp.isnan(jax.jit(lambda mean: lb.Erlang(mean, 2).mean)(jnp.nan))
    assert jax.jit(lambda rate: system(arrival_rate=rate).arrival_rate)(-1.0) == -1
    words = "must have shape (), got shape (2,)"
    assert_rejected(jax.jit(lambda mean: lb.Erlang(mean, 2).mean), np.ones(2), "mean", words)


def test_law_is_a_transform():
    build = lb.TransformDelay
    assert_rejected(build, 3.0, "law", "must map complex r in 1/s to a transform, got 3.0.")
    assert_rejected(build, lambda r: 2 * jnp.exp(-r), "law", "must be 1 at r = 0, got (2+0j)")
    assert_rejected(build, lambda r: jnp.exp(-r) / r, "law", "must be 1 at r = 0, got ")
    words = "must return one number, got shape (2,)."
    assert_rejected(build, lambda r: r + jnp.ones(2), "law", words)
