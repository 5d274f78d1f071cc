"""Where precision, tracing and extreme arguments meet: found by trying to break the package."""

from typing import Any

import diffrax as dfx
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from scipy.linalg import expm

import jaxlb as lb

SINGLE = jnp.float32


def untyped(value: Any) -> Any:
    return value


SYSTEM = lb.System(3.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0))


def test_lists_may_hold_traced_numbers():
    def rates(rate):
        system = lb.System(1.0, [rate, 2 * rate], lb.Erlang(1.0, 2), lb.Logit(1.0))
        return system.service_rates.sum() + lb.fluid.solve(system, [0.0], [rate, 0.0]).queue.sum()

    assert jax.grad(rates)(1.0) == 4


@pytest.mark.parametrize("cv", [1e2, 1e4, 1e6])
def test_a_large_coefficient_of_variation_is_fitted(cv):
    # The rare phase's probability is formed without cancellation.
    np.testing.assert_allclose(lb.from_mean_cv(2.0, cv).squared_cv, cv**2, rtol=1e-13)


@pytest.mark.parametrize("cv", [2e6, 1e200, 1e-4])
def test_a_coefficient_of_variation_out_of_reach_is_named(cv):
    with pytest.raises(ValueError, match=r"^`cv` must be 0 or from 0.001 to 1e"):
        lb.from_mean_cv(2.0, cv)


def test_single_precision_stays_single():
    still = lb.System(SINGLE(3), SINGLE(1), lb.NoDelay(), lb.Logit(SINGLE(1)))
    times, start = jnp.array([1.0], SINGLE), jnp.array([0, 1], SINGLE)
    assert lb.fluid.solve(still, times, start).jobs.dtype == SINGLE
    delay = lb.PhaseType(jnp.array([1, 0], SINGLE), jnp.array([[-2, 1], [0, -1]], SINGLE))
    assert delay.transform(jnp.complex64(1j)).dtype == jnp.complex64
    fitted = lb.from_mean_cv(SINGLE(1), 0.6)
    assert isinstance(fitted, lb.MixedErlang)
    assert fitted.occupancy().dtype == SINGLE


@pytest.mark.parametrize("given", [(1.0, 1.0, 1.0, 0.0), (0.5625, 1.0, 4.0, 1.0)])
def test_the_closed_form_has_its_gradient_at_the_double_root(given):
    times = jnp.array([0.5, 1.0])

    def total(p):
        system = lb.System(p[0], p[1], lb.Erlang(p[2], 1), lb.Logit(p[3]))
        return lb.stability.exponential_imbalance(system, times, 1.0, 0.3).sum()

    def truth(p):
        matrix = np.array([[-p[1], 1 / p[2]], [-p[0] * p[3], -1 / p[2]]])
        return sum((expm(matrix * t) @ [1.0, 0.3])[0] for t in (0.5, 1.0))

    steps = 1e-5 * np.eye(4)
    slopes = [(truth(np.array(given) + h) - truth(np.array(given) - h)) / 2e-5 for h in steps]
    # The difference's own error is its step squared.
    np.testing.assert_allclose(jax.grad(total)(jnp.array(given)), slopes, atol=1e-8)


@pytest.mark.parametrize("delay", [lb.Erlang(1.0, 1), lb.Deterministic(1.0)])
def test_unequal_servers_are_named_before_tracing_hides_them(delay):
    system = lb.System(1.0, [1.0, 2.0], delay, lb.Logit(1.0))
    for work in (lb.stability.spectral_abscissa, lb.model.imbalance.feedback):
        with pytest.raises(ValueError, match=r"^`service_rate` must be the same for every server"):
            work(system)
    if isinstance(delay, lb.Erlang):
        with pytest.raises(ValueError, match=r"^`service_rate` must be the same for every server"):
            lb.fluid.solve_imbalance(system, [1.0], 1.0)


def test_a_batch_of_trajectories_has_its_properties():
    def solve(mean):
        return lb.fluid.solve(lb.System(1.0, 1.0, lb.Erlang(mean, 2), lb.Logit(1.0)), [1.0])

    batch = jax.vmap(solve)(jnp.ones(3))
    assert batch.queue.shape == (3, 1, 2)
    assert batch.ok.shape == (3,)


def test_the_residual_of_a_million_stages_holds_no_array_of_them():
    system = lb.System(1.0, 1.0, lb.Erlang(1.0, 10**6), lb.Logit(1.0))
    program = jax.make_jaxpr(lambda r: lb.stability.characteristic_residual(system, r))(1j)
    assert "1000000]" not in str(program)


def test_traced_times_out_of_order_are_flagged_and_spare_the_others():
    times = jnp.array([[1.0, 2.0], [2.0, 1.0], [-1.0, 1.0], [1.0, jnp.nan]])
    solved = jax.vmap(lambda t: lb.fluid.solve(SYSTEM, t))(times)
    np.testing.assert_array_equal(solved.ok, [True, False, False, False])
    alone = lb.fluid.solve(SYSTEM, times[0])
    np.testing.assert_allclose(solved.queue[0], alone.queue, rtol=1e-12)
    assert np.isinf(solved.queue[1:]).all()
    drawn = jax.vmap(lambda t: lb.stochastic.simulate(SYSTEM, jax.random.key(0), t))(times)
    np.testing.assert_array_equal(drawn.valid[:, 0], [True, False, False, False])


def test_a_rule_that_favours_a_server_has_no_abscissa_about_balance():
    biased = lb.System(3.0, 1.0, lb.Erlang(1.0, 2), lambda q: jax.nn.softmax(jnp.arange(2.0) - q))
    assert np.isnan(lb.stability.spectral_abscissa(biased))


def test_a_solver_of_fixed_steps_takes_a_controller_and_a_step():
    exact = lb.fluid.solve(SYSTEM, [1.0], rtol=1e-10, atol=1e-10).queue
    errors = [
        np.abs(
            lb.fluid.solve(
                SYSTEM,
                [1.0],
                solver=dfx.Euler(),
                controller=dfx.ConstantStepSize(),
                first_step=step,
            ).queue
            - exact
        ).max()
        for step in (0.01, 0.005)
    ]
    # First order: half the step, half the error, up to a term of second order.
    np.testing.assert_allclose(errors[0] / errors[1], 2, rtol=0.05)


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("system", lambda: lb.fluid.solve(untyped(1.0), [1.0])),
        ("system", lambda: lb.fluid.solve_imbalance(untyped(None), [1.0], 1.0)),
        ("system", lambda: lb.stability.spectral_abscissa(untyped(None))),
        ("system", lambda: lb.stochastic.simulate(untyped("a"), jax.random.key(0), [1.0])),
        ("solver", lambda: lb.fluid.solve(SYSTEM, [1.0], solver=untyped(dfx.Tsit5))),
        ("adjoint", lambda: lb.fluid.solve(SYSTEM, [1.0], adjoint=untyped(3))),
        ("controller", lambda: lb.fluid.solve(SYSTEM, [1.0], controller=untyped(0.1))),
        ("first_step", lambda: lb.fluid.solve(SYSTEM, [1.0], first_step=-1)),
    ],
)
def test_an_argument_of_the_wrong_kind_is_named(name, work):
    # A user has no type checker at run time.
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(ValueError, match=f"^`{name}` must be"):
            work()
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
