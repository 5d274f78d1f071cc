"""The cycle at infinite sensitivity, against closed forms and 40-digit arithmetic."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import jaxlb as lb
from jaxlb.fluid import limit_cycle

pytestmark = pytest.mark.usefixtures("quick_compilation")


def system_of(stages, delay=1.0, arrival_rate=15.0, service_rate=1.0, theta=1.0):
    law = lb.Deterministic(delay) if np.isinf(stages) else lb.Erlang(delay, stages)
    return lb.System(arrival_rate, service_rate, law, lb.Logit(theta))


def exact(stages, delay, arrival_rate, service_rate, near):
    """Amplitude and period at 40 digits, the period `near` this; y = (x, w_1, ..., w_L)."""
    with mp.workdps(40):
        rate = mp.mpf(stages) / delay
        matrix = mp.zeros(stages + 1)
        matrix[0, 0], matrix[0, stages] = -mp.mpf(service_rate), rate
        for stage in range(1, stages + 1):
            matrix[stage, stage] = -rate
            if stage > 1:
                matrix[stage, stage - 1] = rate
        inflow = mp.zeros(stages + 1, 1)
        inflow[1] = -2 * mp.mpf(arrival_rate)
        rest = -(matrix**-1) * inflow
        one = mp.eye(stages + 1)

        def switch(half):
            stay = mp.expm(matrix * half)
            return (one + stay) ** -1 * (stay * rest - rest)

        half = mp.findroot(lambda half: switch(half)[0], near / 2)
        start = switch(half)

        def at(time):
            return rest + mp.expm(matrix * time) * (start - rest)

        grid = [half * k / 60 for k in range(61)]
        best = max(grid, key=lambda time: abs(at(time)[0]))
        peak = mp.findroot(lambda time: (matrix * at(time) + inflow)[0], best)
        return float(abs(at(peak)[0])), float(2 * half)


# The paper's figures, another service rate, and many stages; lambda only scales the amplitude.
@pytest.mark.parametrize(
    ("stages", "delay", "arrival_rate", "service_rate"),
    [(2, 1.0, 15.0, 1.0), (2, 4.0, 10.0, 1.0), (5, 1.0, 15.0, 1.3), (12, 2.0, 15.0, 0.7)],
)
def test_amplitude_and_period_are_exact(stages, delay, arrival_rate, service_rate):
    system = system_of(stages, delay, arrival_rate, service_rate)
    found = limit_cycle.relay_limit(system)
    assert found.exists
    assert found.valid
    near = 2 * np.pi / float(lb.stability.hopf_frequency(system))
    amplitude, period = exact(stages, delay, arrival_rate, service_rate, near)
    np.testing.assert_allclose(found.amplitude, amplitude, rtol=1e-12)
    np.testing.assert_allclose(found.period, period, rtol=1e-12)


@pytest.mark.parametrize(
    ("stages", "delay", "arrival_rate", "amplitude", "period"),
    [
        (2, 1.0, 15.0, 4.352888614391132, 2.2552000359032465),
        (2, 4.0, 10.0, 2.903201513933772, 5.706756268430978),
        (5, 1.0, 15.0, 10.929066207674637, 2.9614462056415625),
        (10, 1.0, 15.0, 13.840315686811648, 3.0378858886299347),
        (50, 1.0, 15.0, 16.770104538049655, 3.004340841471034),
        (np.inf, 1.0, 15.0, 18.96361676485673, 2.9797602512895),
        (np.inf, 4.0, 10.0, 19.633687222225316, 9.367894341013798),
    ],
)
def test_relay_limits_are_those_of_another_program(stages, delay, arrival_rate, amplitude, period):
    found = limit_cycle.relay_limit(system_of(stages, delay, arrival_rate))
    np.testing.assert_allclose(found.amplitude, amplitude, rtol=1e-12)
    np.testing.assert_allclose(found.period, period, rtol=1e-12)


def test_a_sharp_rule_is_near_the_limit():
    """Its period and amplitude are lower in the order of 1 / theta^2."""
    limit = limit_cycle.relay_limit(system_of(2))
    near = [limit_cycle.find(system_of(2, theta=theta), 128, 4096) for theta in (15.0, 30.0)]
    assert all(cycle.valid for cycle in near)
    for name in ("period", "amplitude"):
        far = [float(1 - getattr(cycle, name) / getattr(limit, name)) for cycle in near]
        # The next order is smaller by 1 / (theta A), of 65 at least.
        np.testing.assert_allclose(far[0] / far[1], 4, rtol=0.05)
        assert abs(far[1]) < 3e-4


def weighted(theta, weights):
    return lb.System(15.0, 1.0, lb.Erlang(1.0, 3), lb.WeightedLogit(theta, weights))


def test_weights_count_in_the_switch():
    """A rule that counts jobs in transit switches sooner; a large theta is near its limit."""
    limit = limit_cycle.relay_limit(weighted(1.0, [0.0, 0.1, 0.05]))
    assert limit.valid
    assert limit.period < limit_cycle.relay_limit(system_of(3)).period
    near = limit_cycle.find(weighted(100.0, [0.0, 0.1, 0.05]), 64, 8192)
    # In the order of 1 / theta^2.
    np.testing.assert_allclose(near.period, limit.period, rtol=1e-6)
    np.testing.assert_allclose(near.amplitude, limit.amplitude, rtol=1e-4)


def test_a_rule_that_switches_without_end_is_flagged():
    """It sees at once what it sends: the load has a kink at each switch, and may not cross."""
    limit = limit_cycle.relay_limit(weighted(1.0, [0.2, 0.1, 0.05]))
    assert limit.exists
    assert not limit.valid
    assert np.isnan(limit.period)


@pytest.mark.parametrize("stages", [3, np.inf])
def test_derivatives_are_those_of_finite_differences(stages):
    def both(numbers):
        found = limit_cycle.relay_limit(system_of(stages, *numbers))
        return jnp.stack([found.amplitude, found.period])

    numbers = jnp.array([1.0, 15.0, 1.2])
    at = jax.jit(jax.vmap(both))
    step = 1e-4 * np.eye(3)
    slope = (at(numbers + step) - at(numbers - step)) / 2e-4
    for derivative in (jax.jacrev, jax.jacfwd):
        found = jax.jit(derivative(both))(numbers)
        # Second order in steps of 1e-4.
        np.testing.assert_allclose(found, slope.T, rtol=1e-6, atol=1e-7)


def test_where_balance_is_always_stable_there_is_no_cycle():
    found = limit_cycle.relay_limit(system_of(1))
    assert not found.exists
    assert not found.valid
    assert found.amplitude == 0
    assert np.isnan(found.period)


def test_delays_that_have_neither_phases_nor_a_closed_form_are_refused():
    law = lb.TransformDelay(lambda r: jnp.exp(-r))
    with pytest.raises(ValueError, match="`delay` must be Deterministic or have phases here"):
        limit_cycle.relay_limit(lb.System(15.0, 1.0, law, lb.Logit(1.0)))
