"""Linear noise of rules with a memory, and the price of partial observation."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxlb as lb
from jaxlb import design

from .filters import fading, filtered

pytestmark = pytest.mark.usefixtures("quick_compilation")

INITIAL, GENERATOR = [0.5, 0.3, 0.2], [[-8.0, 1.0, 0.0], [0.0, -0.5, 0.2], [0.0, 0.0, -2.0]]
MIXED = lb.PhaseType(INITIAL, GENERATOR)
TWO = [1.0, 0.0], [[-2.5, 2.5], [0.0, -2.5]]
TWO_FAST = [1.0, 0.0], [[-2.0, 2.0], [0.0, -2.0]]
# Feedback of least variance at a tenth of the effort of a switch, at scale 100, by another
# implementation: 15 arrivals a second, service rate 1, two stages of a mean of 1 s.
GAINS = np.array([12.124802302436654, 4.278306452575738, 8.854282978113531])


class Fading(eqx.Module):
    """A weight that falls with age; one program for all its numbers."""

    level: jax.Array
    rate: jax.Array

    def __call__(self, age):
        return self.level * jnp.exp(-self.rate * age)


def of_age(sensitivity, level, rate):
    return lb.AgeLogit(sensitivity, Fading(jnp.asarray(level), jnp.asarray(rate)))


def of(rule, delay: Any = MIXED):
    return lb.System(15.0, 1.0, delay, rule)


def designed():
    return of(lb.WeightedLogit(GAINS[0] / 15, GAINS[1:] / GAINS[0]), lb.Erlang(1.0, 2))


@pytest.mark.parametrize(
    ("gains", "log"),
    [([-0.3, -0.7], True), ([-0.2, -0.4], True), ([0.3, -0.1], True), ([-0.1, 0.2], False)],
    ids=["known total", "less", "more", "no log"],
)
def test_a_filter_of_another_delay_has_the_noise_of_its_events(gains, log):
    rule = lb.FilteredLogit(0.2, [0.9, 1.1], gains, lb.PhaseType(*TWO), log)
    found = design.observed_noise(of(rule), 100.0)
    wanted = filtered(INITIAL, GENERATOR, TWO, gains, [0.9, 1.1], log, 3.0, 15.0)
    # Rounding over the distance to instability, both of order one.
    np.testing.assert_allclose(found.variance, 100 * wanted[0], rtol=1e-10)
    np.testing.assert_allclose(found.effort, 10 * wanted[1], rtol=1e-10)


def test_a_filter_that_knows_all_is_the_rule_itself():
    rule = lb.WeightedLogit(0.2, [0.7])
    system = of(rule, lb.Erlang(2.0, 1))
    found = design.observed_noise(system.with_routing(design.kalman(system)))
    seen = design.observed_noise(system)
    # Rounding.
    np.testing.assert_allclose(found.variance, seen.variance, rtol=1e-12)
    np.testing.assert_allclose(found.effort, seen.effort, rtol=1e-12)


def test_a_filter_whose_errors_grow_is_flagged_with_finite_derivatives():
    def noise(sensitivity, gain):
        rule = lb.FilteredLogit(sensitivity, [1.0, 1.0], [gain, -1.0], lb.PhaseType(*TWO))
        return jnp.stack(design.observed_noise(of(rule, lb.PhaseType(*TWO))))

    assert np.isinf(noise(0.2, -0.5)).all()
    np.testing.assert_array_equal(jax.jacrev(noise, (0, 1))(0.2, -0.5), np.zeros((2, 2)))


def test_noise_of_a_filter_has_derivatives():
    def effort(sensitivity, rate):
        delay = lb.PhaseType(TWO[0], jnp.array([[-rate, rate], [0.0, -2.5]]))
        rule = lb.FilteredLogit(sensitivity, [0.9, 1.1], [-0.3, -0.7], lb.PhaseType(*TWO))
        return design.observed_noise(of(rule, delay)).effort

    for number, slope in enumerate(jax.grad(effort, (0, 1))(0.2, 3.0)):
        step = 1e-4 * np.eye(2)[number]
        ahead, behind = effort(*(np.array([0.2, 3.0]) + step)), effort(*([0.2, 3.0] - step))
        # Central differences: error of the square of the step.
        np.testing.assert_allclose(slope, (ahead - behind) / 2e-4, rtol=1e-6)


def test_weights_that_fade_with_age_have_the_noise_of_their_events():
    found = design.observed_noise(of(of_age(0.2, 1.5, 0.8)))
    wanted = fading(INITIAL, GENERATOR, 1.5, 0.8, 3.0, 15.0)
    # As documented: sums over ages in steps of one percent.
    np.testing.assert_allclose(found.variance, wanted[0], rtol=5e-6)
    np.testing.assert_allclose(found.effort, wanted[1], rtol=2e-4)


def test_one_weight_for_every_age_counts_the_number_in_transit():
    found = design.observed_noise(of(of_age(0.2, 0.7, 0.0)))
    wanted = fading(INITIAL, GENERATOR, 0.7, 0.0, 3.0, 15.0)
    # Rounding of sums over 2048 frequencies.
    np.testing.assert_allclose(found.variance, wanted[0], rtol=1e-12)
    np.testing.assert_allclose(found.effort, wanted[1], rtol=1e-12)


def test_a_late_view_adds_to_a_constant_delay():
    late = of(lb.LateLogit(0.08, 0.4), lb.Deterministic(0.6))
    found = design.observed_noise(late, 100.0).variance
    # Kuechler and Mensch (1992), of dx = -(x + kappa x(t - 1)) dt + noise, kappa > 1.
    kappa, turn = 1.2, np.sqrt(1.2**2 - 1)
    wanted = 3000 * (turn + kappa * np.sin(turn)) / (turn * (1 + kappa * np.cos(turn)))
    # A wave of a constant delay is not resolved beyond 200 rad/s, where a part of 1e-7 is left.
    np.testing.assert_allclose(found, wanted, rtol=1e-7)
    prompt, rule = of(lb.LateLogit(0.08, 0.0)), of(lb.Logit(0.08))
    for found, wanted in zip(*map(design.observed_noise, (prompt, rule)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-11)


@pytest.mark.parametrize(("part", "stable"), [(0.98, True), (1.02, False), (5.0, False)])
def test_balance_past_its_hopf_point_is_flagged(part, stable):
    # With a mean of 1 s: nine for two stages, and where w + tan w = 0 for a constant delay.
    rule = of_age(part * 9 / 15, 0.0, 0.0)
    assert design.observed_noise(of(rule, lb.Erlang(1.0, 2))).stable == stable
    late = lb.LateLogit(part * np.hypot(1, 2.028757838) / 15, 0.4)
    assert design.observed_noise(of(late, lb.Deterministic(0.6))).stable == stable


def test_a_loop_that_turns_too_fast_for_the_frequencies_is_not_judged():
    late = of(lb.LateLogit(1.0, 1e4), lb.NoDelay())
    assert np.isnan(design.observed_noise(late).variance)


def test_observations_are_one_table():
    table = design.observations(designed(), 100.0)
    rows = {row.name: row for row in table.rows}
    phases, total, alone = rows["phases"], rows["total"], rows["queues alone"]
    # To five digits, what the design was made for.
    np.testing.assert_allclose(phases.effort, 0.1, rtol=1e-4)
    # By that implementation: with all seen, and with own shares alone, to rounding of the gains;
    # the others with a small noise added to arrivals, and up to a highest frequency.
    seen, ages, log, shares = (row.relative for row in table.rows[:4])
    np.testing.assert_allclose([seen, shares], [0.44546289268965, 0.55385437964333], rtol=1e-12)
    np.testing.assert_allclose(log, 0.4593249, rtol=5e-4)
    np.testing.assert_allclose(ages, 0.4588042, rtol=5e-5)
    # Two stages alone are best at kappa = 1.5, with variance 0.8: a closed form.
    np.testing.assert_allclose([15 * alone.sensitivity, alone.relative], [1.5, 0.8], rtol=1e-7)
    # All that count jobs in transit by what is known of their phases act alike on average.
    np.testing.assert_array_equal([row.decay_rate for row in table.rows[:4]], phases.decay_rate)
    # Counted in full, at the effort that the design has.
    kappa = 15 * total.sensitivity
    np.testing.assert_allclose(total.relative, (1 + kappa) / (1 + 2 * kappa), rtol=1e-12)
    np.testing.assert_allclose(total.effort, phases.effort, rtol=1e-9)
    order = [row.relative for row in (*table.rows[:3], total, *table.rows[5:])]
    assert sorted(order) == order
    np.testing.assert_allclose(phases.variance, 3000 * phases.relative, rtol=1e-12)
    late = table.rows[-1]
    later = lb.System(15.0, 1.0, lb.Erlang(1.0, 2), lb.LateLogit(late.sensitivity * 1.01, 0.1))
    assert design.observed_noise(later).variance / 30 > late.relative
    lines = str(table).splitlines()
    assert len(lines) == 8
    assert "late" in lines[-1]


def test_bad_arguments_are_named():
    system = of(of_age(0.2, 1.0, 0.0), lb.Deterministic(1.0))
    with pytest.raises(ValueError, match=r"^`delay` must have phases for jobs of some age"):
        design.observed_noise(system)
    with pytest.raises(ValueError, match=r"^`delay` must have phases for the noise of a filter"):
        design.observed_noise(system.with_routing(design.kalman(designed())))
    with pytest.raises(ValueError, match=r"^`scale` must be positive"):
        design.observed_noise(designed(), -1.0)
    with pytest.raises(ValueError, match=r"^`routing` must be a logit rule, with or without"):
        design.observed_noise(of(lambda queue: queue / queue.sum()))
    unstable = eqx.tree_at(lambda s: s.routing.weights, designed(), jnp.array([-1.0, -1.0]))
    with pytest.raises(ValueError, match=r"^`system` must be stable"):
        design.observations(unstable)


def test_a_bad_member_of_a_batch_spares_the_others():
    def noise(lag):
        return design.observed_noise(of(lb.LateLogit(0.05, lag))).variance

    batch = jax.vmap(noise)(jnp.array([0.1, -1.0, 0.2]))
    good = jax.vmap(noise)(jnp.array([0.1, 0.3, 0.2]))
    assert np.isnan(batch[1])
    np.testing.assert_array_equal(batch[::2], good[::2])


def test_single_precision_stays_single_and_is_near():
    single = jnp.float32
    system = lb.System(
        single(15), single(1), lb.Erlang(single(1), 2), of_age(single(0.2), 1.5, 0.8)
    )
    found = design.observed_noise(system, single(1)).variance
    assert found.dtype == single
    wanted = fading(*TWO_FAST, 1.5, 0.8, 3.0, 15.0)[0]
    # Rounding of sums over frequencies and ages.
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
