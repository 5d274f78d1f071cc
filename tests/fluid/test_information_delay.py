from typing import Any

import diffrax as dfx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaxlb as lb

from .. import closed_forms
from ..delay_equation import by_stacked_lags

pytestmark = pytest.mark.usefixtures("quick_compilation")

information_delay = lb.fluid.information_delay
TIMES = np.linspace(0, 8, 33)
TIGHT: Any = {"rtol": 1e-12, "atol": 1e-12}
GENERATOR = np.array([[-2.0, 1.5], [0.5, -3.0]])


def filtered(arrival_rate, rates, initial, generator, sensitivity, start, times):
    """y' = generator y + exit rates q, q' = N lambda p(initial . y) - mu q by another solver."""
    servers, phases = len(rates), len(initial)
    leave = -generator.sum(axis=1)

    def right_side(_, flat):
        state = flat.reshape(servers, phases + 1)
        past, queue = state[:, :-1], state[:, -1]
        seen = past @ initial if phases else queue
        inflow = servers * arrival_rate * closed_forms.logit(sensitivity, seen)
        change = past @ generator.T + np.outer(queue, leave)
        return np.column_stack([change, inflow - rates * queue]).ravel()

    solution = solve_ivp(
        right_side, (0, times[-1]), start.ravel(), "DOP853", times, rtol=1e-12, atol=1e-12
    )
    return solution.y.T.reshape(len(times), servers, phases + 1)


@pytest.mark.parametrize(
    ("delay", "initial", "generator"),
    [
        (lb.NoDelay(), np.zeros(0), np.zeros((0, 0))),
        (lb.Erlang(1.2, 3), np.eye(3)[0], 2.5 * (np.eye(3, k=1) - np.eye(3))),
        (lb.MixedErlang(0.8, [0.4, 0.6]), [0.6, 0.4], 2.0 * (np.eye(2, k=1) - np.eye(2))),
        (lb.PhaseType([0.3, 0.7], GENERATOR), [0.3, 0.7], GENERATOR),
    ],
    ids=["none", "Erlang", "mixed Erlang", "phase type"],
)
def test_the_dispatcher_sees_queues_filtered_by_the_phases(delay, initial, generator):
    rates, phases = np.array([0.7, 1.1, 1.6]), len(initial)
    system = lb.System(4.0, rates, delay, lb.Logit(0.8), 3)
    queue, past = np.array([1.0, 0.0, 4.0]), np.arange(3.0 * phases).reshape(3, phases)
    start = np.column_stack([past, queue])
    wanted = filtered(4.0, rates, np.array(initial), generator, 0.8, start, TIMES)
    solution = information_delay.solve(system, TIMES, queue, past, **TIGHT)
    assert solution.ok
    # Two solvers at 1e-12 over some oscillations.
    np.testing.assert_allclose(solution.filter, wanted[..., :-1], atol=1e-9)
    np.testing.assert_allclose(solution.queue, wanted[..., -1], atol=1e-9)
    seen = wanted[..., :-1] @ initial if phases else wanted[..., -1]
    np.testing.assert_allclose(solution.observed, seen, atol=1e-9)


def test_a_past_that_is_not_given_is_the_queue_at_time_zero():
    system = lb.System(4.0, 1.0, lb.Erlang(1.2, 3), lb.Logit(0.8))
    usual = information_delay.solve(system, [0.0, 2.0])
    np.testing.assert_array_equal(usual.queue[0], [0, 1])
    np.testing.assert_array_equal(usual.filter[0], [[0, 0, 0], [1, 1, 1]])
    given = information_delay.solve(system, [0.0, 2.0], [0.0, 1.0], [0.0, 1.0])
    np.testing.assert_array_equal(given.queue, usual.queue)
    other = information_delay.solve(system, [0.0, 2.0], None, [5.0, 1.0])
    np.testing.assert_array_equal(other.filter[0], [[5, 5, 5], [1, 1, 1]])
    assert not np.allclose(other.queue[1], usual.queue[1])


@pytest.mark.parametrize("servers", [2, 3, 4])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5])
def test_action_delay_is_information_delay_in_other_variables(stages, servers):
    """The drift of one is the image of that of the other: exactly, at any state."""
    rng = np.random.default_rng(10 * stages + servers)
    rates = rng.uniform(0.5, 2, servers)
    delay, rule = lb.Erlang(rng.uniform(0.3, 2), stages), lb.Logit(rng.uniform(0.1, 2))
    system = lb.System(rng.uniform(2, 10), rates, delay, rule, servers)
    jobs = jnp.array(rng.uniform(0, 10, (servers, stages + 1)))

    def image(jobs):
        queue, past = information_delay.equivalent(system, jobs)
        return jnp.column_stack([past, queue])

    @jax.jit
    def drifts(jobs):
        moved, wanted = jax.jvp(image, (jobs,), (lb.model.dynamics.drift(system, jobs),))
        return moved, wanted, information_delay.drift(system, moved)

    moved, wanted, found = drifts(jobs)
    # Sums of terms that grow up to tenfold with each stage: rounding.
    np.testing.assert_allclose(found, wanted, atol=1e-12 * np.abs(wanted).max())
    np.testing.assert_array_equal(moved[:, 0], jobs[:, -1])


def test_trajectories_of_the_two_delays_are_images_of_each_other():
    system = lb.System(6.0, [0.7, 1.1, 1.6], lb.Erlang(1.2, 3), lb.Logit(1.5), 3)
    jobs = jnp.array(np.random.default_rng(0).uniform(0, 10, (3, 4)))
    action = lb.fluid.solve(system, TIMES, jobs, **TIGHT)
    start = information_delay.equivalent(system, jobs)
    information = information_delay.solve(system, TIMES, *start, **TIGHT)
    queue, past = jax.vmap(lambda jobs: information_delay.equivalent(system, jobs))(action.jobs)
    # Two solves at 1e-12 over some oscillations; the largest number is 40.
    for found, wanted in (
        (information.observed, action.queue),
        (information.queue, queue),
        (information.filter, past),
    ):
        np.testing.assert_allclose(found, wanted, atol=1e-11 * np.abs(queue).max())


def test_cycles_of_the_two_delays_differ_in_amplitude_but_not_in_period():
    """Figure 3: 3.637615 is seen, and the n-th harmonic of the queue is (1 + i n omega D / 2)^2
    times that of what is seen."""
    system = lb.System(15.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0))
    cycle = lb.fluid.limit_cycle.find(system)
    number = 2 * np.arange(cycle.harmonics.shape[1]) + 1
    ahead = (1 + 1j * number * np.pi / float(cycle.period)) ** 2
    phase = np.exp(2j * np.pi * np.outer(np.arange(4000) / 4000, number))
    wanted = (phase @ (ahead * np.asarray(cycle.harmonics)[0])).real
    period, samples = 2.227550740353, 4000
    times = 60 + period * np.arange(samples + 1) / samples
    found = information_delay.solve(system, times, **TIGHT)
    x, seen = (q[:, 0] - q[:, 1] for q in (found.queue, found.observed))
    # The slow multiplier is .347 a period: 1e-12 is left of the start.
    np.testing.assert_allclose(x[-1], x[0], atol=1e-7)
    # A sample next to a peak of curvature 30 and 300 jobs/s^2 is 1e-6 and 1e-5 below it.
    np.testing.assert_allclose(np.abs(seen).max(), 3.637615152396, atol=2e-6)
    np.testing.assert_allclose(np.abs(x).max(), 11.37729, atol=2e-5)
    np.testing.assert_allclose(np.abs(x).max(), np.abs(wanted).max(), atol=2e-5)


def test_a_deterministic_delay_of_information_is_that_of_another_solver():
    rates, start, seen = np.array([0.7, 1.4]), np.array([1.0, 4.0]), np.array([3.0, 2.0])
    system = lb.System(6.0, rates, lb.Deterministic(1.3), lb.Logit(1.5))

    def inflow(queue):
        return 12 * closed_forms.logit(1.5, queue)

    wanted = by_stacked_lags(inflow, rates, 1.3, start, inflow(seen), TIMES)[..., 1]
    solution = information_delay.solve(system, TIMES, start, seen, **TIGHT)
    # Rounding over some oscillations.
    np.testing.assert_allclose(solution.queue, wanted, atol=1e-10)
    assert solution.filter.shape == (33, 2, 0)
    early = TIMES < 1.3
    np.testing.assert_array_equal(np.asarray(solution.observed)[early], np.tile(seen, (6, 1)))
    late = information_delay.solve(system, TIMES[~early] - 1.3, start, seen, **TIGHT)
    # The same polynomials at the same places, up to the rounding of the times.
    np.testing.assert_allclose(np.asarray(solution.observed)[~early], late.queue, atol=1e-10)


def test_deterministic_action_delay_is_information_delay_begun_one_delay_later():
    """Of a system that starts empty; with another start the pasts differ."""
    system = lb.System(6.0, [0.7, 1.4], lb.Deterministic(1.3), lb.Logit(1.5))
    action = lb.fluid.solve(system, TIMES + 1.3, [0.0, 0.0], **TIGHT)
    information = information_delay.solve(system, TIMES, [0.0, 0.0], **TIGHT)
    # The same windows, one delay apart, up to the rounding of the times.
    np.testing.assert_allclose(information.queue, action.queue, atol=1e-11)
    assert np.ptp(np.asarray(information.queue[-1])) > 1


def test_a_member_that_fails_says_so_and_leaves_the_others_alone():
    means = jnp.array([1.0, 1e-6, 0.5])

    def solve(mean):
        system = lb.System(6.0, 1.0, lb.Deterministic(mean), lb.Logit(1.5))
        solution = information_delay.solve(system, TIMES)
        return solution.queue, solution.observed, solution.ok

    queue, observed, ok = jax.jit(jax.vmap(solve))(means)
    np.testing.assert_array_equal(ok, [True, False, True])
    assert np.isinf(queue[1]).all()
    assert np.isinf(observed[1]).all()
    others = jax.jit(jax.vmap(solve))(means.at[1].set(1.0))[0]
    np.testing.assert_array_equal(queue[0], others[0])
    np.testing.assert_array_equal(queue[2], others[2])


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("delay", lambda s: information_delay.solve(s(lb.moving_average(1.0)), [1.0])),
        (
            "routing",
            lambda s: information_delay.solve(s(rule=lb.WeightedLogit(1.0, [1, 1])), [1.0]),
        ),
        ("initial", lambda s: information_delay.solve(s(), [1.0], np.ones((2, 3)))),
        ("initial", lambda s: information_delay.solve(s(), [1.0], [1.0, np.nan])),
        ("observed", lambda s: information_delay.solve(s(), [1.0], None, np.ones((2, 3)))),
        ("observed", lambda s: information_delay.solve(s(), [1.0], None, [1.0, 1.0, 1.0])),
        (
            "observed",
            lambda s: information_delay.solve(
                s(lb.Deterministic(1.0)), [1.0], None, np.ones((2, 2))
            ),
        ),
        (
            "solver",
            lambda s: information_delay.solve(s(lb.Deterministic(1.0)), [1.0], solver=dfx.Dopri8()),
        ),
        ("times", lambda s: information_delay.solve(s(), [2.0, 1.0])),
        ("delay", lambda s: information_delay.equivalent(s(lb.NoDelay()), jnp.ones((2, 1)))),
        ("jobs", lambda s: information_delay.equivalent(s(), jnp.ones((2, 2)))),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_bad_arguments_are_named(name, work):
    def system(delay=None, rule=None):
        delay = lb.Erlang(1.0, 2) if delay is None else delay
        return lb.System(1.0, 1.0, delay, lb.Logit(1.0) if rule is None else rule)

    with pytest.raises(ValueError, match=f"^`{name}` must "):
        work(system)
