import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import jaxlb as lb

from .. import closed_forms

dynamics = lb.model.dynamics
drift = eqx.filter_jit(dynamics.drift)
propensities = eqx.filter_jit(dynamics.propensities)

LOOP = np.array([[-2.0, 0.5, 0.7], [0.25, -3.0, 0.0], [1.0, 0.0, -1.5]])
DELAYS = {
    "none": lb.NoDelay(),
    "one stage": lb.Erlang(1.3, 1),
    "five stages": lb.Erlang(0.7, 5),
    "mixed stages": lb.MixedErlang(2.0, [0.25, 0.5, 0.0, 0.25]),
    "phases": lb.PhaseType([0.5, 0.25, 0.25], LOOP),
}
RATES = {1: [0.9], 2: [0.7, 0.7], 3: [0.5, 1.0, 2.0]}

delays = pytest.mark.parametrize("name", DELAYS)
servers = pytest.mark.parametrize("num_servers", [2, 3])


def system(delay, num_servers, routing=None):
    return lb.System(
        1.7, RATES[num_servers], delay, routing or lb.Logit(0.4), num_servers=num_servers
    )


def some_jobs(delay, num_servers, seed=0):
    shape = num_servers, delay.num_phases + 1
    return jnp.array(np.random.default_rng(seed).uniform(0, 5, shape))


@pytest.mark.parametrize("stages", [1, 2, 5])
@servers
def test_drift_is_equations_2_to_4(stages, num_servers):
    delay = lb.Erlang(0.7, stages)
    jobs = some_jobs(delay, num_servers)
    wanted = closed_forms.chain_drift(1.7, RATES[num_servers], 0.7, stages, 0.4, np.asarray(jobs))
    # Differences of a few terms, each below 40/s.
    np.testing.assert_allclose(drift(system(delay, num_servers), jobs), wanted, atol=3e-14)


@delays
@servers
def test_drift_follows_the_generator_of_the_phases(name, num_servers):
    delay = DELAYS[name]
    jobs = some_jobs(delay, num_servers)
    found = drift(system(delay, num_servers), jobs)
    if name == "none":
        share = closed_forms.logit(0.4, np.asarray(jobs[:, -1]))
        wanted = num_servers * 1.7 * share[:, None] - np.array(RATES[num_servers])[:, None] * jobs
    else:
        initial, generator = np.asarray(delay.initial), np.asarray(delay.generator)
        wanted = closed_forms.phase_type_drift(
            1.7, RATES[num_servers], initial, generator, 0.4, np.asarray(jobs)
        )
    # Differences of a few terms, each below 40/s.
    np.testing.assert_allclose(found, wanted, atol=3e-14)


@pytest.mark.parametrize("name", ["one stage", "five stages", "mixed stages"])
def test_phase_type_of_the_same_generator_moves_the_same_way(name):
    delay = DELAYS[name]
    written_out = lb.PhaseType(delay.initial, delay.generator)
    jobs = some_jobs(delay, 3)
    # The sum of more terms, most of them zero: a few roundings of 40/s.
    np.testing.assert_allclose(
        drift(system(written_out, 3), jobs),
        drift(system(delay, 3), jobs),
        atol=3e-14,
    )


@delays
@servers
def test_jobs_change_by_arrivals_less_completions(name, num_servers):
    delay = DELAYS[name]
    jobs = some_jobs(delay, num_servers)
    total = drift(system(delay, num_servers), jobs).sum()
    balance = num_servers * 1.7 - jobs[:, -1] @ np.array(RATES[num_servers])
    # A few dozen roundings of terms below 40/s.
    np.testing.assert_allclose(total, balance, atol=1e-13)


@delays
def test_stoichiometry_turns_events_into_changes(name):
    delay = DELAYS[name]
    stoichiometry = dynamics.stoichiometry(delay)
    source, target = dynamics.routes(delay)
    # Every event moves one job; only routing adds one and only completion takes one away.
    np.testing.assert_array_equal(stoichiometry.sum(axis=1)[source == 0], 1)
    assert stoichiometry.sum(axis=1)[-1] == -1
    assert np.all(stoichiometry.sum(axis=1)[(source > 0)][:-1] == 0)
    assert target[-1] == delay.num_phases + 1
    counts = np.random.default_rng(1).integers(0, 9, (3, len(source)))
    changes = dynamics.net_change(delay, jnp.array(counts, float))
    np.testing.assert_array_equal(changes, counts @ stoichiometry)


@delays
def test_rates_grow_with_the_scale_and_the_dispatcher_sees_scaled_jobs(name):
    delay = DELAYS[name]
    both = system(delay, 2)
    jobs = jnp.floor(100 * some_jobs(delay, 2))
    at_scale = propensities(both, jobs.astype(jnp.int32), 100.0)
    # One rounding each for the division by and the multiplication with the scale.
    np.testing.assert_allclose(at_scale, 100 * propensities(both, jobs / 100), rtol=1e-15)
    assert np.all(at_scale >= 0)


def test_single_server_gets_every_job():
    delay = DELAYS["phases"]
    jobs = some_jobs(delay, 1)
    assert dynamics.shares(system(delay, 1), jobs) == 1
    events = propensities(system(delay, 1), jobs)
    # Three phases of entry: one rounding each.
    np.testing.assert_allclose(events[0, :3], 1.7 * np.array([0.5, 0.25, 0.25]), rtol=4e-16)


@pytest.mark.parametrize(
    ("shares", "shape"),
    [(jnp.ones(3), "(3,)"), (jnp.ones((2, 1)), "(2, 1)"), (1.0, "()"), (jnp.ones(0), "(0,)")],
)
def test_rule_that_returns_another_shape_is_rejected(monkeypatch, shares, shape):
    # Users run without the type checks of the test suite.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    both = system(DELAYS["one stage"], 2, lambda queue: 0 * queue.sum() + shares)
    jobs = some_jobs(DELAYS["one stage"], 2)
    with pytest.raises(ValueError, match=r"^`routing` must return .* \(2,\), got") as error:
        dynamics.drift(both, jobs)
    assert f"got shape {shape}." in str(error.value)


def test_paths_start_with_the_scale_in_service_at_all_servers_but_the_first():
    delay = DELAYS["phases"]
    np.testing.assert_array_equal(
        dynamics.initial_jobs(system(delay, 3), None, 50.0),
        [[0, 0, 0, 0], [0, 0, 0, 50], [0, 0, 0, 50]],
    )


def test_initial_jobs_are_those_in_service_or_all():
    both = system(DELAYS["phases"], 2)
    np.testing.assert_array_equal(dynamics.initial_jobs(both, [3, 4]), [[0, 0, 0, 3], [0, 0, 0, 4]])
    everywhere = np.arange(8.0).reshape(2, 4)
    np.testing.assert_array_equal(dynamics.initial_jobs(both, everywhere), everywhere)


@delays
def test_drift_is_differentiable_in_every_parameter(name):
    """The product of a Jacobian and a direction, against a central difference."""
    delay, jobs = DELAYS[name], some_jobs(DELAYS[name], 3)
    direction = jax.tree.map(lambda leaf: 0.1 * jnp.cos(leaf), system(delay, 3))

    @jax.jit
    def value(step):
        moved = jax.tree.map(lambda leaf, change: leaf + step * change, system(delay, 3), direction)
        return dynamics.drift(moved, jobs)

    _, slope = jax.jvp(value, (0.0,), (1.0,))
    difference = (value(1e-4) - value(-1e-4)) / 2e-4
    # Third derivatives below 10 times 1e-8 / 6; rounding 1e-14 / 1e-4.
    np.testing.assert_allclose(slope, difference, atol=3e-8)
