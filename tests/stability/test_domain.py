"""Values outside the domain that only show while they are traced: NaN, false flags, no slope."""

import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxlb as lb
from jaxlb import stability

pytestmark = pytest.mark.usefixtures("quick_compilation")

# lambda, mu, D, theta: one good member, then one of each fault.
NUMBERS = jnp.array(
    [
        [1.0, 1.0, 1.0, 5.0],
        [-1.0, 1.0, 1.0, 5.0],
        [1.0, 0.0, 1.0, 5.0],
        [1.0, 1.0, jnp.nan, 5.0],
        [1.0, 1.0, 1.0, -1.0],
        [1.0, 1.0, 1.0, jnp.inf],
    ]
)
OF_ERLANG = {
    "all_roots": stability.all_roots,
    "best_delay": stability.best_delay,
    "best_sensitivity": stability.best_sensitivity,
    "eigenvalues": stability.eigenvalues,
    "exponential_roots": stability.exponential_roots,
    "pseudospectral_abscissa": lambda system: stability.pseudospectral_abscissa(system, 0.1),
}
OF_ANY = {
    "certified_root": stability.certified_root,
    "critical_delay": stability.critical_delay,
    "critical_gain_for_every_delay": stability.critical_gain_for_every_delay,
    "critical_sensitivity": stability.critical_sensitivity,
    "damping_ratio": stability.damping_ratio,
    "decay_time": stability.decay_time,
    "hopf_frequency": stability.hopf_frequency,
    "margins": stability.margins,
    "rightmost_pair": stability.rightmost_pair,
    "rightmost_root": stability.rightmost_root,
    "sensitivity_peak": stability.sensitivity_peak,
    "worst_abscissa": lambda system: stability.worst_abscissa(system, 0.5, 2.0),
}


def assert_only_the_first_is_good(function, members, differentiate=None):
    """`function` of each member: all NaN and false but for the first, and finite slopes."""

    def total(member):
        found = function(member)
        parts = [jnp.real(part) for part in jax.tree.leaves(found) if part.dtype != bool]
        return sum(jnp.sum(jnp.where(jnp.isinf(part), 0.0, part)) for part in parts), found

    if differentiate is None:
        slopes, found = None, jax.vmap(function)(members)
    else:
        slopes, found = jax.jit(jax.vmap(differentiate(total, has_aux=True)))(members)
    leaves = jax.tree.leaves(found)
    for leaf in leaves:
        rest = leaf[1:]
        assert not rest.any() if leaf.dtype == bool else np.isnan(jnp.real(rest)).all()
        if jnp.iscomplexobj(rest):
            assert np.isnan(jnp.imag(rest)).all()
    assert not any(np.isnan(leaf[0]).any() for leaf in leaves)
    for slope in jax.tree.leaves(slopes):
        assert np.isfinite(slope).all()
        assert slope[0].any()
        assert not slope[1:].any()


def of_numbers(values, stages):
    arrival_rate, service_rate, mean, sensitivity = values
    delay = lb.Erlang(mean, stages)
    return lb.System(arrival_rate, service_rate, delay, lb.Logit(sensitivity))


@pytest.mark.parametrize("name", [*OF_ERLANG, *OF_ANY])
def test_bad_member_of_a_batch_is_flagged_and_spares_the_rest(name):
    function = (OF_ERLANG | OF_ANY)[name]
    stages = 1 if "exponential" in name else 3
    # The cheap ones; how slopes are cut off is the same in all.
    cheap = ["best_sensitivity", "critical_delay", "decay_time", "exponential_roots"]
    slopes = jax.grad if name in [*cheap, "certified_root", "damping_ratio"] else None
    assert_only_the_first_is_good(
        lambda values: function(of_numbers(values, stages)), NUMBERS, slopes
    )


# Start, generator and weights of a rule for two phases: one good member, then one of each fault.
START, GENERATOR, WEIGHTS = [0.95, 0.05], [[-2.0, 1.9], [0.0, -2.0]], [0.01, 0.02]
OF_PHASES = [
    (START, GENERATOR, WEIGHTS),
    *[(start, GENERATOR, WEIGHTS) for start in ([1.5, -0.5], [0.5, 0.6], [jnp.nan, 1.0])],
    *[
        (START, [[-2.0, onward], [back, -2.0]], WEIGHTS)
        for onward, back in ((-1.0, 0.0), (3.0, 0.0), (2.0, 2.0), (jnp.inf, 0.0))
    ],
    *[(START, GENERATOR, weights) for weights in ([jnp.nan, 0.1], [0.1, jnp.inf])],
]


def with_phases(initial, generator, weights):
    delay = lb.PhaseType(initial, generator)
    return lb.System(1.0, 1.0, delay, lb.WeightedLogit(2.0, weights))


def with_mixture(weights):
    return lb.System(1.0, 1.0, lb.MixedErlang(1.0, weights), lb.Logit(2.0))


class Law(eqx.Module):
    at_zero: jax.Array

    def __call__(self, r):
        return self.at_zero * jnp.exp(-self.at_zero * r)


def with_law(at_zero):
    return lb.System(1.0, 1.0, lb.TransformDelay(Law(at_zero)), lb.Logit(2.0))


@pytest.mark.parametrize(
    ("make_system", "members"),
    [
        (with_phases, OF_PHASES),
        (with_mixture, [([0.05, 0.95],), ([-0.5, 1.5],), ([0.6, 0.5],), ([1.0, jnp.nan],)]),
        (with_law, [(1.0,), (0.5,), (jnp.nan,)]),
    ],
)
def test_bad_delay_law_or_weight_is_flagged(make_system, members):
    numbers = tuple(jnp.array(part) for part in zip(*members, strict=True))
    assert_only_the_first_is_good(
        lambda given: stability.critical_sensitivity(make_system(*given)), numbers, jax.jacfwd
    )


def test_bad_weight_has_no_slope_in_reverse_mode_either():
    def root(weights):
        rule = lb.WeightedLogit(2.0, weights)
        return stability.rightmost_root(lb.System(1.0, 1.0, lb.Erlang(1.0, 2), rule))

    members = jnp.array([WEIGHTS, [jnp.nan, 0.1], [0.1, jnp.inf]])
    assert_only_the_first_is_good(root, members, jax.grad)


def test_functions_of_numbers_flag_what_they_cannot_refuse():
    bad, few, gain = (-1.0, 0.0, np.nan, np.inf), (0.5, -1.0, np.nan), (-1.0, np.nan)
    for function, good, faults in [
        (stability.erlang_boundary, (1.0, 1.0, 3.0), (bad, bad, few)),
        (stability.erlang_delay_window, (9.0, 1.0, 3.0), (gain, bad, few)),
        (stability.erlang_safe_gain, (1.0, 3.0), (bad, few)),
        (stability.erlang_best_gain, (1.0, 1.0, 3.0), (bad, bad, few)),
        (stability.erlang_best_delay, (2.0, 1.0, 3.0), ((), bad, few)),
        (stability.erlang_pair, (1.0, 1.0, 1.0, 3.0, 2.0), ((), bad, (), few, ())),
    ]:
        members = [good]
        for place, values in enumerate(faults):
            members += [(*good[:place], value, *good[place + 1 :]) for value in values]
        # Under one jit: what is not compiled as a whole would be compiled operation by operation.
        assert_only_the_first_is_good(
            jax.jit(lambda numbers, function=function: function(*numbers)), jnp.array(members)
        )


def test_bad_radius_or_range_is_flagged():
    system = lb.System(1.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(2.0))
    members = jnp.array([0.1, -1.0, 0.0, jnp.nan])
    assert_only_the_first_is_good(
        jax.jit(lambda r: stability.pseudospectral_abscissa(system, r)), members
    )
    range_of = jax.jit(lambda d, longest: stability.worst_abscissa(system, d, longest))
    assert_only_the_first_is_good(lambda d: range_of(d, 2.0), members)
    assert np.isnan(jax.vmap(lambda d: range_of(d, 0.1))(members)[0]).all()


def test_servers_that_turn_out_to_differ_are_flagged():
    def margins(rates):
        system = lb.System(1.0, rates, lb.Erlang(1.0, 2), lb.Logit(2.0))
        return stability.margins(system)

    assert_only_the_first_is_good(margins, jnp.array([[1.0, 1.0], [1.0, 2.0]]))


@pytest.mark.parametrize(
    ("function", "more"),
    [
        (stability.eigenvalues, ()),
        (stability.rightmost_root, ()),
        (stability.two_stage_critical_gain, ()),
        (stability.characteristic_residual, (1.0,)),
        (stability.open_loop, (1.0,)),
    ],
)
def test_what_is_no_system_is_named(function, more):
    # As users have it, without the types that tests check.
    function = inspect.unwrap(function)
    with pytest.raises(ValueError, match=r"^`system` must be of type System, got 3\.$"):
        function(3, *more)


def test_functions_of_phases_name_the_delay_that_has_none():
    law = lb.System(1.0, 1.0, lb.TransformDelay(lambda r: jnp.exp(-r)), lb.Logit(1.0))
    for function, reason in [
        (stability.eigenvalues, "must have phases for a matrix, got TransformDelay"),
        (stability.rightmost_pair, "must have phases for a pair of roots, got TransformDelay"),
        (stability.best_sensitivity, "find it with `jaxlb.stability.summary` instead"),
    ]:
        with pytest.raises(ValueError, match=f"^`delay` .*{reason}"):
            function(law)
