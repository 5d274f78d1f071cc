import diffrax as dfx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaxlb as lb

from .. import closed_forms
from ..rules import Counted

FIGURE_TIMES = [1.0, 2.0, 5.0, 10.0, 15.0, 20.0]
# Fluid limit of Figures 2 and 3 at those times, by DOP853 at 1e-13 outside this project.
FIGURES = {
    1: (
        [4.289679881448681, 8.966248634763598, 14.39395880563515,
         14.992518983931257, 14.999926723125121, 14.999999352189494],
        [4.005433089436223, 8.988911157177876, 14.399948681528553,
         14.992544439176882, 14.999926749663363, 14.999999351344872],
    ),
    2: (
        [3.738763437713871, 8.252528869053497, 15.759465351136548,
         13.789123183815931, 13.720788230189084, 16.2718826937265],
        [2.7838755483764244, 9.48885659242377, 13.45642492857965,
         16.205475646738332, 16.27917536752742, 13.728117060996228],
    ),
}  # fmt: skip
# Figure 7, L = 2: x of the nonlinear and of the linear system, likewise.
FIGURE_7_TIMES = [5.0, 10.0, 20.0, 40.0, 60.0]
FIGURE_7 = {
    False: [0.6013479329173239, 0.4472941073418288, -0.3233883586402835,
            -0.38050516519986477, 0.9998742022732791],
    True: [0.6351307456560242, 0.5352406790134119, -0.15494726973117734,
           -1.2607933706491836, 1.8683020808492086],
}  # fmt: skip
PAPER = 15.0, 1.0, 1.0, 1.0


def system(arrival_rate=15.0, service_rate=1.0, mean=1.0, sensitivity=1.0, stages=2):
    return lb.System(arrival_rate, service_rate, lb.Erlang(mean, stages), lb.Logit(sensitivity))


def dop853(parameters, stages, times, initial):
    """Equations (2)-(4) by another solver, accurate to 1e-11."""
    arrival_rate, service_rate, mean, sensitivity = parameters
    rates, shape = [service_rate] * len(initial), np.shape(initial)

    def right_side(_, jobs):
        jobs = jobs.reshape(shape)
        change = closed_forms.chain_drift(arrival_rate, rates, mean, stages, sensitivity, jobs)
        return change.ravel()

    start = np.ravel(initial)
    solution = solve_ivp(right_side, (0, times[-1]), start, "DOP853", times, rtol=1e-12, atol=1e-12)
    return solution.y.T.reshape(-1, *shape)


@pytest.mark.parametrize("stages", [1, 2])
def test_fluid_limit_of_figures_2_and_3_is_reproduced(stages):
    solution = lb.fluid.solve(system(stages=stages), FIGURE_TIMES, rtol=1e-10, atol=1e-10)
    assert solution.ok
    np.testing.assert_array_equal(solution.times, FIGURE_TIMES)
    assert solution.jobs.shape == (6, 2, stages + 1)
    # The error per unit of tolerance is a few tens over this horizon.
    np.testing.assert_allclose(solution.queue.T, FIGURES[stages], atol=1e-8)
    start = np.zeros((2, stages + 1))
    start[1, -1] = 1
    wanted = dop853(PAPER, stages, FIGURE_TIMES, start)
    np.testing.assert_allclose(solution.jobs, wanted, atol=1e-8)
    np.testing.assert_array_equal(solution.in_transit, solution.jobs[..., :-1])


def test_default_tolerance_leaves_a_relative_error_of_1e_7():
    solution = lb.fluid.solve(system(), FIGURE_TIMES)
    # 1.5e-7 of the largest value is the worst of 64 random systems; 16 jobs here.
    np.testing.assert_allclose(solution.queue.T, FIGURES[2], atol=16 * 1.5e-7)


def test_single_precision_in_gives_single_precision_out():
    single = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), system())
    times = jnp.array(FIGURE_TIMES, jnp.float32)
    solution = lb.fluid.solve(single, times, jnp.array([0, 1], jnp.float32))
    assert solution.jobs.dtype == jnp.float32
    assert solution.ok
    # 2.3e-5 of the largest value is the worst of 64 random systems; 16 jobs here.
    np.testing.assert_allclose(solution.queue.T, FIGURES[2], atol=16 * 2.5e-5)


def test_trajectory_starts_at_the_initial_state_whatever_its_form():
    everywhere = np.random.default_rng(0).uniform(0, 5, (2, 3))
    times = [0.0, *FIGURE_TIMES[:-1]]
    solution = lb.fluid.solve(system(), times, everywhere, rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(solution.jobs[0], everywhere)
    # As in the first test.
    np.testing.assert_allclose(solution.jobs, dop853(PAPER, 2, times, everywhere), atol=1e-8)
    for initial in [None, [0, 1], [0.0, 1.0]]:
        start = lb.fluid.solve(system(), times, initial).jobs[0]
        np.testing.assert_array_equal(start, [[0, 0, 0], [0, 0, 1]])


def test_imbalance_settles_on_the_known_limit_cycle():
    """Amplitude 3.637615152396 and period 2.227550740353, by harmonic balance elsewhere."""
    period, samples = 2.227550740353, 2000
    # The slow multiplier is .347 a period: 1e-12 of the transient is left at time 60.
    times = 60 + period * np.arange(samples + 1) / samples
    solution = lb.fluid.solve(system(), times, rtol=1e-9, atol=1e-9)
    x = np.asarray(solution.queue[:, 0] - solution.queue[:, 1])
    # A phase error does not matter to the first; a sample next to the peak is 5e-6 below it.
    np.testing.assert_allclose(x[-1], x[0], atol=1e-6)
    np.testing.assert_allclose(max(abs(x)), 3.637615152396, atol=6e-6)


@pytest.mark.parametrize("solver", [dfx.Dopri8(), dfx.Kvaerno5(), dfx.Heun()], ids=str)
def test_any_solver_of_diffrax_may_be_used(solver):
    tolerance = 1e-5 if isinstance(solver, dfx.Heun) else 1e-8
    solution = lb.fluid.solve(
        system(), FIGURE_TIMES[:2], solver=solver, rtol=tolerance, atol=tolerance
    )
    assert solution.ok
    # The error per unit of tolerance is a few tens.
    np.testing.assert_allclose(solution.queue.T, np.array(FIGURES[2])[:, :2], atol=50 * tolerance)
    # And it was that solver, not the usual one.
    usual = lb.fluid.solve(system(), FIGURE_TIMES[:2], rtol=tolerance, atol=tolerance)
    assert not np.array_equal(solution.jobs, usual.jobs)


def final_queue(parameters, adjoint=None):
    arrival_rate, service_rate, mean, sensitivity = parameters
    solution = lb.fluid.solve(
        system(arrival_rate, service_rate, mean, sensitivity),
        FIGURE_TIMES[:2],
        rtol=1e-10,
        atol=1e-10,
        adjoint=adjoint,
        max_steps=4096,
    )
    return solution.queue[-1, 0]


@pytest.fixture(scope="module")
def gradient():
    """Central differences of q_1(2) in each parameter, by the other solver."""
    start = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]])

    def value(parameters):
        return dop853(parameters, 2, FIGURE_TIMES[:2], start)[-1, 0, -1]

    steps = 1e-3 * np.eye(4)
    # Richardson: the error is the fourth power of the step, and 1e-11 over the step.
    coarse = [(value(PAPER + 2 * step) - value(PAPER - 2 * step)) / 4e-3 for step in steps]
    fine = [(value(PAPER + step) - value(PAPER - step)) / 2e-3 for step in steps]
    return (4 * np.array(fine) - np.array(coarse)) / 3


@pytest.mark.parametrize(
    ("transform", "adjoint"),
    [
        (jax.grad, None),
        (jax.jacfwd, dfx.ForwardMode()),
        (jax.grad, dfx.DirectAdjoint()),
    ],
    ids=["reverse", "forward", "direct"],
)
def test_gradients_are_those_of_finite_differences(gradient, transform, adjoint):
    found = jax.jit(transform(lambda p: final_queue(p, adjoint)))(jnp.array(PAPER))
    # The solve is accurate to 1e-9 and its derivatives to a few times that; differences to 1e-7.
    np.testing.assert_allclose(found, gradient, rtol=1e-6, atol=3e-7)


def test_backward_solve_warns_that_it_is_unstable():
    with pytest.warns(UserWarning, match="BacksolveAdjoint .* wrong gradients"):
        lb.fluid.solve(system(), FIGURE_TIMES[:2], adjoint=dfx.BacksolveAdjoint())


def test_member_that_fails_says_so_and_leaves_the_others_alone():
    """The second has stages a thousand times as fast, more than 512 steps allow."""
    means = jnp.array([1.0, 1e-3, 0.5])

    def solve(mean):
        solution = lb.fluid.solve(
            system(mean=mean), FIGURE_TIMES[:2], method="diffrax", max_steps=512
        )
        return solution.jobs, solution.ok, solution.result == dfx.RESULTS.max_steps_reached

    jobs, ok, too_long = jax.jit(jax.vmap(solve))(means)
    np.testing.assert_array_equal(ok, [True, False, True])
    np.testing.assert_array_equal(too_long, [False, True, False])
    # What was reached before the failure stays; the rest is infinite.
    assert np.all(np.isinf(jobs[1, -1]))
    alone = jax.jit(jax.vmap(solve))(means[jnp.array([0, 2])])[0]
    # Steps are chosen for each member by itself: rounding over some dozens of steps.
    np.testing.assert_allclose(jobs[jnp.array([0, 2])], alone, rtol=1e-12)


def test_new_values_and_tolerances_do_not_recompile():
    traces = []

    def solve(theta, rtol, mean):
        whole = lb.System(15.0, 1.0, lb.Erlang(mean, 2), Counted(jnp.array(theta), traces))
        return lb.fluid.solve(whole, FIGURE_TIMES[:2], rtol=rtol, atol=rtol).queue

    first = solve(1.0, 1e-8, 1.0)
    # The error per unit of tolerance is a few tens.
    np.testing.assert_allclose(first.T, np.array(FIGURES[2])[:, :2], atol=5e-7)
    count = len(traces)
    assert count > 0
    second = solve(0.5, 1e-6, 0.5)
    assert len(traces) == count
    assert not np.allclose(first, second)


@pytest.mark.parametrize("linear", [False, True])
def test_imbalance_of_figure_7_is_reproduced(linear):
    whole = system(10.0, 1.0, 4.0, 1.0)
    solution = lb.fluid.solve_imbalance(
        whole, FIGURE_7_TIMES, 1.0, linear=linear, rtol=1e-10, atol=1e-10
    )
    assert solution.ok
    # The error per unit of tolerance is a few hundreds over this longer horizon.
    np.testing.assert_allclose(solution.queue, FIGURE_7[linear], atol=5e-8)
    np.testing.assert_array_equal(solution.queue, solution.y[:, 0])
    np.testing.assert_array_equal(solution.in_transit, solution.y[:, 1:])


def test_nonlinear_imbalance_is_the_difference_of_the_fluid_limit():
    everywhere = jnp.array(np.random.default_rng(1).uniform(0, 5, (2, 3)))
    start = lb.model.imbalance.difference(everywhere)
    reduced = lb.fluid.solve_imbalance(system(), FIGURE_TIMES, start, rtol=1e-10, atol=1e-10)
    whole = lb.fluid.solve(system(), FIGURE_TIMES, everywhere, rtol=1e-10, atol=1e-10)
    difference = jax.vmap(lb.model.imbalance.difference)(whole.jobs)
    # Two solves, each as accurate as in the first test.
    np.testing.assert_allclose(reduced.y, difference, atol=2e-8)


@pytest.mark.parametrize(
    ("mean", "theta"), [(4.0, 1.0), (0.2, 0.1)], ids=["complex roots", "real roots"]
)
def test_linear_imbalance_is_the_closed_form_for_one_stage(mean, theta):
    whole = system(10.0, 1.0, mean, theta, stages=1)
    start = jnp.array([0.7, -0.4])
    solution = lb.fluid.solve_imbalance(
        whole, FIGURE_TIMES, start, linear=True, rtol=1e-10, atol=1e-10
    )
    wanted = lb.stability.exponential_imbalance(whole, FIGURE_TIMES, 0.7, -0.4)
    # The error per unit of tolerance is a few tens.
    np.testing.assert_allclose(solution.queue, wanted, atol=5e-9)


def test_imbalance_stays_within_two_lambda_over_mu_however_sensitive_the_rule():
    """The feedback saturates at 2 lambda, the paper's remark on Figure 7."""
    whole = system(10.0, 0.5, 4.0, 100.0)
    times = np.linspace(0, 60, 601)
    solution = lb.fluid.solve_imbalance(whole, times, 1.0)
    assert solution.ok
    assert np.max(abs(solution.queue)) <= 2 * 10 / 0.5
    assert np.max(abs(solution.in_transit)) <= 2 * 10 * 4 / 2
    # And it does not die out: balance is unstable.
    assert np.max(abs(solution.queue[300:])) > 1


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([-1.0, 1.0], "must be non-negative and finite, got [-1. 1.] s"),
        ([1.0, 1.0], "must be increasing, got [1. 1.] s"),
        ([2.0, 1.0], "must be increasing, got [2. 1.] s"),
        ([1.0, np.nan], "must be non-negative and finite, got [ 1. nan] s"),
        ([1.0, np.inf], "must be non-negative and finite, got [ 1. inf] s"),
        ([], "must have at least one entry, got none"),
        (1.0, "must have shape (any,), got shape ()"),
        ([[1.0]], "must have shape (any,), got shape (1, 1)"),
        ("1", "must be a number, got '1'"),
        ([1j], "must be real, got an array of complex128"),
    ],
    ids=repr,
)
def test_times_are_finite_not_negative_and_increasing(times, words):
    for use in [
        lambda: lb.fluid.solve(system(), times),
        lambda: lb.fluid.solve_imbalance(system(), times, 1.0),
        lambda: lb.stability.exponential_imbalance(system(stages=1), times, 1.0),
    ]:
        with pytest.raises(ValueError, match=r"^`times` ") as error:
            use()
        assert words in str(error.value)


@pytest.mark.parametrize(
    ("initial", "words"),
    [
        ([-1.0, 1.0], "must be non-negative and finite, got [-1. 1.] jobs"),
        ([np.nan, 1.0], "must be non-negative and finite, got [nan 1.] jobs"),
        ([1.0, 1.0, 1.0], "must have shape (2,), got shape (3,)"),
        (1.0, "must have shape (2, 3), got shape ()"),
        (np.ones((2, 2)), "must have shape (2, 3), got shape (2, 2)"),
        (np.ones((1, 2, 3)), "must have shape (2, 3), got shape (1, 2, 3)"),
        ("1", "must be a number, got '1'"),
        ([True, False], "must be real, got an array of bool"),
    ],
    ids=repr,
)
def test_initial_jobs_are_finite_and_not_negative(initial, words):
    with pytest.raises(ValueError, match=r"^`initial` ") as error:
        lb.fluid.solve(system(), [1.0], initial)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("initial", "words"),
    [
        (np.nan, "must be finite, got nan jobs"),
        ([1.0, 0.0, -np.inf], "must be finite"),
        ([1.0, 0.0], "must have shape (3,), got shape (2,)"),
        (np.ones((1, 3)), "must have shape (3,), got shape (1, 3)"),
        (True, "must be a number, got True"),
    ],
    ids=repr,
)
def test_initial_imbalance_is_finite(initial, words):
    with pytest.raises(ValueError, match=r"^`initial` ") as error:
        lb.fluid.solve_imbalance(system(), [1.0], initial)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "demand"),
    [
        ("rtol", 0.0, "positive and finite"),
        ("rtol", np.nan, "positive and finite"),
        ("atol", -1e-8, "positive and finite"),
        ("atol", [1e-8], "shape ()"),
        ("max_steps", 0, "an integer of at least 1, got 0"),
        ("max_steps", True, "an integer of at least 1, got True"),
    ],
)
def test_settings_of_the_solver_are_checked(name, value, demand):
    with pytest.raises(ValueError, match=f"^`{name}` must ") as error:
        lb.fluid.solve(system(), [1.0], None, **{name: value})
    assert demand in str(error.value)
