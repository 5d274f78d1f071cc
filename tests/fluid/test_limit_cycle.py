"""Limit cycles by harmonic balance, against shooting, the fluid ODE and closed forms."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaxlb as lb
from jaxlb.fluid import limit_cycle

pytestmark = pytest.mark.usefixtures("quick_compilation")

# theta, D, lambda with mu = 1; stages; amplitude, period, and their derivatives in theta, D, lambda
# and mu: half-period shooting by DOP853 at 1e-13 up to 10 stages, else harmonic balance with 256
# harmonics in another program; derivatives agree with its finite differences to 4e-9.
TABLE = [
    (
        *((1.0, 1.0, 15.0), 2, 3.637615152396451, 2.2275507403534602),
        [1.8141806504827918, 1.8148098476172363, 0.3634530535252638, -3.6369859552617174],
        [0.020673228146735542, 1.6766872463520204, 0.001378215209782361, -0.5715367221481742],
    ),
    (
        *((1.0, 4.0, 10.0), 2, 1.3593065716118184, 5.620651590033609),
        [5.6953099064015404, -0.5878171220723475, 0.7054616478013531, -9.405884966302919],
        [0.01489954032642865, 0.8418990152568019, 0.001489954032642878, -2.2679550693328347],
    ),
    (
        *((1.0, 1.0, 15.0), 10, 13.683874337268676, 3.0414555562458756),
        [0.3197636031027618, 8.28639594384773, 0.933575862691426, -5.71724199652368],
        [-0.006651699562062568, 2.5250147895435937, -0.0004434466374708191, -0.5097890671402201],
    ),
    (
        *((1.0, 1.0, 15.0), np.inf, 18.053225243847507, 2.9888368909982126),
        [0.8705943862136477, 11.548694033108992, 1.2615879753374082, -7.375125596952121],
        [-0.018364778154024316, 2.4487748130173057, -0.0012243185436016661, -0.5216972998268817],
    ),
]


def system_of(numbers, stages):
    theta, delay, arrival_rate, service_rate = numbers
    law = lb.Deterministic(delay) if np.isinf(stages) else lb.Erlang(delay, stages)
    return lb.System(arrival_rate, service_rate, law, lb.Logit(theta))


@cache
def derivatives(stages):
    """In reverse and forward, of amplitude and period in the numbers: one program each."""
    sizes = (64, 512) if np.isinf(stages) else (32, 256)

    def both(numbers):
        found = limit_cycle.find(system_of(numbers, stages), *sizes)
        return jnp.stack([found.amplitude, found.period])

    return jax.jit(jax.jacrev(both)), jax.jit(jax.jacfwd(both))


@pytest.mark.parametrize(
    ("numbers", "stages", "amplitude", "period", "by_amplitude", "by_period"), TABLE
)
def test_cycles_are_those_of_shooting_and_so_are_their_derivatives(
    numbers, stages, amplitude, period, by_amplitude, by_period
):
    """10 digits asked; shooting has 12. Derivatives to 1e-8."""
    numbers = jnp.array([*numbers, 1.0])
    found = limit_cycle.find(system_of(numbers, stages))
    assert found.exists
    assert found.valid
    assert found.steps <= 6
    np.testing.assert_allclose(found.amplitude, amplitude, rtol=1e-11)
    np.testing.assert_allclose(found.period, period, rtol=1e-11)
    for derivative in derivatives(stages):
        slopes = [by_amplitude, by_period]
        np.testing.assert_allclose(derivative(numbers), slopes, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(
    ("delay", "rule"),
    [
        (lb.Erlang(1.0, 2), lb.Logit(1.0)),
        (lb.Erlang(1.0, 4), lb.WeightedLogit(1.0, [0.1, 0.1, 0.05, 0.05])),
        # Jobs in the first phase have the corners of the bend.
        (lb.Erlang(1.0, 10), lb.Logit(5.0)),
    ],
    ids=["erlang", "weighted", "sharp"],
)
def test_the_waveform_solves_the_difference_system(delay, rule):
    """From a point of the cycle over one period by DOP853 at 1e-12: every phase, to 1e-9."""
    system = lb.System(12.0, 1.3, delay, rule)
    found = limit_cycle.find(system)
    assert found.valid
    times = np.linspace(0, float(found.period), 33)
    wave = np.asarray(found.imbalance(times))
    drift = jax.jit(lambda y: lb.model.imbalance.drift(system, y))
    solution = solve_ivp(
        lambda _, y: np.asarray(drift(jnp.asarray(y))),
        (0, times[-1]),
        wave[0],
        method="DOP853",
        t_eval=times,
        rtol=1e-12,
        atol=1e-12,
    )
    np.testing.assert_allclose(wave, solution.y.T, atol=1e-9 * np.abs(wave).max())
    np.testing.assert_allclose(wave[16:], -wave[:17], atol=1e-11 * np.abs(wave).max())
    dense = found.imbalance(np.linspace(0, float(found.period), 20_001))[:, 0]
    np.testing.assert_allclose(found.amplitude, np.abs(dense).max(), rtol=1e-7)
    assert found.amplitude >= np.abs(dense).max() * (1 - 1e-14)


def test_there_is_no_cycle_below_the_critical_sensitivity():
    """And derivatives are zero; at theta_c = 0.6 the system is not beyond it either."""
    for theta in (0.0, 0.3, 0.6 - 1e-9):
        found = limit_cycle.find(system_of((theta, 1.0, 15.0, 1.0), 2))
        assert not found.exists
        assert not found.valid
        assert found.amplitude == 0
        assert np.isnan(found.period)
    in_reverse, _ = derivatives(2)
    np.testing.assert_array_equal(in_reverse(jnp.array([0.3, 1.0, 15.0, 1.0]))[0], 0)
    assert not limit_cycle.find(system_of((9.0, 1.0, 15.0, 1.0), 1)).exists


def test_near_the_hopf_point_the_amplitude_grows_like_a_square_root():
    """theta A = 4 sqrt(theta / theta_c - 1) to first order, whatever the delay."""
    for stages in (2, 10, np.inf):
        critical = lb.stability.critical_sensitivity(system_of((1.0, 1.0, 15.0, 1.0), stages))
        for excess in (1e-4, 1e-6):
            theta = critical * (1 + excess)
            found = limit_cycle.find(system_of((theta, 1.0, 15.0, 1.0), stages))
            assert found.valid
            # The load is x; the next order is of the relative size of the excess.
            np.testing.assert_allclose(
                theta * found.amplitude, 4 * np.sqrt(excess), rtol=3 * excess + 1e-8
            )


def test_a_batch_flags_members_without_a_cycle_and_spares_the_others():
    theta = jnp.array([0.3, 1.0, -1.0, 1e300, 1.0])

    def period(theta):
        found = limit_cycle.find(system_of((theta, 1.0, 15.0, 1.0), 2))
        return found.period, found

    grad, batch = jax.jit(jax.vmap(jax.grad(period, has_aux=True)))(theta)
    np.testing.assert_array_equal(batch.valid, [False, True, False, False, True])
    np.testing.assert_allclose(batch.amplitude[jnp.array([1, 4])], 3.637615152396451, rtol=1e-11)
    assert np.isfinite(np.asarray(grad)[:3]).all()
    np.testing.assert_allclose(grad[jnp.array([1, 4])], 0.020673228146735542, rtol=1e-8)


def test_single_precision_keeps_its_type_and_six_digits():
    with jax.enable_x64(False):
        found = limit_cycle.find(system_of((1.0, 1.0, 15.0, 1.0), 2))
        assert found.valid
        assert found.amplitude.dtype == jnp.float32
        assert found.harmonics.dtype == jnp.complex64
    np.testing.assert_allclose(found.amplitude, 3.637615152396451, rtol=2e-6)
    np.testing.assert_allclose(found.period, 2.2275507403534602, rtol=2e-6)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"num_servers": 3}, "`num_servers` must be 2 here, got 3"),
        ({"service_rate": [1.0, 2.0]}, "`service_rate` must be the same for every server"),
        ({"routing": lambda queue: jax.nn.softmax(-queue)}, "`routing` must be a logit rule here"),
    ],
)
def test_systems_whose_difference_is_not_closed_are_refused(change, complaint):
    parts = {
        "arrival_rate": 15.0,
        "service_rate": 1.0,
        "delay": lb.Erlang(1.0, 2),
        "routing": lb.Logit(1.0),
    } | change
    with pytest.raises(ValueError, match=complaint):
        limit_cycle.find(lb.System(**parts))


@pytest.mark.parametrize(
    ("harmonics", "samples", "complaint"),
    [
        (8, None, "`harmonics` and `samples` must be given both or neither, got 8 and None"),
        (0, 64, "`harmonics` must be an integer of at least 1|`harmonics` must be"),
        (8, 15, "`samples` must be"),
    ],
)
def test_bad_numbers_of_harmonics_are_refused(harmonics, samples, complaint):
    with pytest.raises(ValueError, match=complaint):
        limit_cycle.find(system_of((1.0, 1.0, 15.0, 1.0), 2), harmonics, samples)
