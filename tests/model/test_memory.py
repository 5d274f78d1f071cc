"""Rules with a memory by themselves: what they make of what they are told."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jaxtyping
import numpy as np
import pytest
from scipy.linalg import expm

import jaxlb as lb

from .. import closed_forms, oracles

UNIT = jnp.array(0.25)
COXIAN = np.array([0.8, 0.2]), np.array([[-3.0, 2.0], [0.5, -1.5]])
DELAYS = {
    "erlang": (lb.Erlang(1.0, 3), oracles.erlang(1.0, 3)),
    "phase-type": (lb.PhaseType(*COXIAN), COXIAN),
    "mixed": (
        lb.MixedErlang(1.0, [0.3, 0.0, 0.7]),
        oracles.mixed_erlang(1.0, np.array([0.3, 0.0, 0.7])),
    ),
}
# Seconds of waiting, and a job of which server is sent then, or arrives.
STORY = [(0.3, "sent", 0), (0.0, "sent", 1), (2.1, "sent", 0), (1e-4, "arrived", 1)]
STORY = [*STORY, (0.7, "sent", 2), (5.0, "arrived", 0), (40.0, "arrived", 0)]
SHARES = jnp.array([0.5, 0.3, 0.2])
QUEUE = jnp.array([1.0, 0.5, 2.0])


def told(rule, story=STORY):
    """The states during a story about three servers, before each of its events and at the end."""
    state = rule.start(3, 8, UNIT)
    for number, (duration, what, server) in enumerate(story):
        state = rule.wait(state, QUEUE, jnp.array(duration))
        yield state
        given = jnp.array(server), jnp.array(number)
        state = rule.sent(state, *given, SHARES) if what == "sent" else rule.arrived(state, *given)
    yield state


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("name", DELAYS)
def test_estimate_is_that_of_the_filter_by_matrix_exponentials(name, log):
    delay, (initial, generator) = DELAYS[name]
    phases = len(initial)
    gains, weights = -np.linspace(0.2, 0.4, phases), np.linspace(1.5, -0.5, phases)
    rule = lb.FilteredLogit(0.7, weights, gains, delay, log=log)
    states = told(rule)
    leave, jobs = -generator.sum(axis=1), np.zeros((3, phases))
    for duration, what, server in STORY:
        jobs = jobs @ expm(duration * (generator - np.outer(leave, gains)))
        # Hundreds of steps of a rounding each, of jobs below one.
        np.testing.assert_allclose(next(states).in_transit, jobs, rtol=0, atol=1e-14)
        if what == "arrived":
            jobs[server] += 0.25 * gains
        else:
            known = np.eye(3)[server] if log else np.asarray(SHARES)
            jobs += 0.25 * np.outer(known, initial)
    share = closed_forms.logit(0.7, QUEUE + jobs @ weights)
    np.testing.assert_allclose(rule.shares(next(states), QUEUE), share, rtol=1e-13)


@pytest.mark.parametrize("phases", [4, 50])
def test_estimate_of_a_dispatcher_with_a_log_sums_to_what_is_in_transit(phases):
    """With gains that sum to -1, whatever the delay is taken for; with sums and with products."""
    gains = -np.random.default_rng(1).dirichlet(np.ones(phases))
    rule = lb.FilteredLogit(0.7, np.ones(phases), gains, lb.Erlang(2.0, phases))
    *_, state = told(rule)
    total = state.in_transit.sum(axis=1)
    # 2 to server 0 and 2 back, 1 to server 1 and back, 1 to server 2; rounding as above.
    np.testing.assert_allclose(total, [0.0, 0.0, 0.25], rtol=0, atol=1e-13)


def test_single_precision_keeps_what_is_in_transit_to_its_rounding():
    gains = np.array([-0.4, -0.6], np.float32)
    delay = lb.Erlang(jnp.float32(1.0), 2)
    rule = lb.FilteredLogit(np.float32(0.7), np.ones(2, np.float32), gains, delay)
    state = rule.start(3, 8, jnp.float32(0.25))
    state = rule.sent(state, jnp.array(1), jnp.array(0), SHARES.astype(jnp.float32))

    @jax.jit
    def waited(state):
        def once(_, state):
            return rule.wait(state, QUEUE.astype(jnp.float32), jnp.float32(1e-3))

        return jax.lax.fori_loop(0, 10_000, once, state)

    total = waited(state).in_transit.sum(axis=1)
    assert total.dtype == jnp.float32
    # Rates are rounded: by 1e-7 of 0.25 jobs per second, for 10 s. Sums alone would lose 1.3e-6.
    np.testing.assert_allclose(total, [0.0, 0.25, 0.0], rtol=0, atol=4e-7)


class Fading(eqx.Module):
    rate: jax.Array

    def __call__(self, age):
        return jnp.exp(-self.rate * age)


def test_each_job_in_transit_counts_by_its_age():
    rule = lb.AgeLogit(0.7, Fading(jnp.array(0.4)))
    # Jobs 0 and 3 arrive; 1, 2 and 4 are on their way since 3.2, 1.1 and 0.6 s.
    state = rule.start(3, 8, UNIT)
    for number, duration, server in ((0, 0.3, 2), (1, 0.2, 0), (2, 2.1, 0), (3, 0.1, 1)):
        state = rule.wait(state, QUEUE, jnp.array(duration))
        state = rule.sent(state, jnp.array(server), jnp.array(number), SHARES)
    for number, duration, server in ((3, 0.3, 1), (0, 0.1, 2)):
        state = rule.wait(state, QUEUE, jnp.array(duration))
        state = rule.arrived(state, jnp.array(server), jnp.array(number))
    state = rule.sent(state, jnp.array(1), jnp.array(4), SHARES)
    state = rule.wait(state, QUEUE, jnp.array(0.6))
    ages = np.array([3.2, 1.1, 0.6])
    counted = np.array([np.exp(-0.4 * ages[:2]).sum(), np.exp(-0.4 * ages[2]), 0.0])
    share = closed_forms.logit(0.7, QUEUE + 0.25 * counted)
    # A few roundings.
    np.testing.assert_allclose(rule.shares(state, QUEUE), share, rtol=1e-14)


RULES = {
    "FilteredLogit": lb.FilteredLogit(0.7, [1.0, 1.0], [-0.5, -0.5], lb.Erlang(1.0, 2)),
    "AgeLogit": lb.AgeLogit(0.7, Fading(jnp.array(0.4))),
    "LateLogit": lb.LateLogit(0.7, 0.5),
}
CALLS = {
    "fluid": lambda system: lb.fluid.solve(system, jnp.array([0.0, 1.0])),
    "fluid-collocation": lambda system: lb.fluid.solve(
        system, jnp.array([0.0, 1.0]), method="collocation"
    ),
    "imbalance": lambda system: lb.fluid.solve_imbalance(system, jnp.array([0.0, 1.0]), 1.0),
    "information": lambda system: lb.fluid.information_delay.solve(system, jnp.array([0.0, 1.0])),
    "cycle": lb.fluid.limit_cycle.find,
    "settling": lambda system: lb.fluid.settling_time(system, horizon=5.0, tolerance=0.05),
    "feedback": lb.model.imbalance.feedback,
    "abscissa": lb.stability.spectral_abscissa,
    "roots": lb.stability.all_roots,
    "critical": lb.stability.critical_sensitivity,
    "margins": lb.stability.margins,
    "summary": lb.stability.summary,
    "variance": lb.stochastic.imbalance_variance,
    "covariance": lb.stochastic.stationary_covariance,
    "spectrum": lambda system: lb.stochastic.noise_spectrum(system, jnp.array(1.0)),
    "gradient": lambda system: lb.stochastic.expectation_gradient(
        system, lambda jobs: jobs[0, -1], jr.key(0), 1.0
    ),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("call", CALLS)
def test_what_needs_shares_of_the_present_state_refuses_a_memory_by_name(call, rule):
    system = lb.System(15.0, 1.0, lb.Erlang(1.0, 2), RULES[rule])
    with pytest.raises(ValueError, match=rf"`routing` must .*{rule}"):
        CALLS[call](system)


@pytest.mark.parametrize("rule", RULES)
def test_without_phases_a_memory_is_refused_too(rule):
    system = lb.System(15.0, 1.0, lb.Deterministic(1.0), RULES[rule])
    for call in ("fluid", "abscissa", "margins", "cycle"):
        with pytest.raises(ValueError, match=rf"`routing` must .*{rule}"):
            CALLS[call](system)


def filtered(**changes):
    good: dict[str, Any] = {"sensitivity": 0.7, "weights": [1.0, 1.0], "gains": [-0.5, -0.5]}
    good["delay"] = lb.Erlang(1.0, 2)
    return lb.FilteredLogit(**(good | changes))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: filtered(sensitivity=-1.0), "`sensitivity` must be non-negative .* -1.0 per job"),
        (lambda: filtered(weights=[1.0]), r"`weights` must have shape \(2,\), got shape \(1,\)"),
        (lambda: filtered(weights=[1.0, np.nan]), "`weights` must be finite"),
        (lambda: filtered(gains=[1.0]), r"`gains` must have shape \(2,\), got shape \(1,\)"),
        (lambda: filtered(gains=[np.inf, 0.0]), "`gains` must be finite"),
        (lambda: filtered(delay=lb.Deterministic(1.0)), "`delay` must be of type AbstractPhase"),
        (lambda: filtered(log="yes"), "`log` must be of type bool, got 'yes'"),
        (lambda: lb.AgeLogit(-1.0, jnp.exp), "`sensitivity` must be non-negative"),
        (lambda: lb.AgeLogit(1.0, 0.5), "`weight` must map an age, s, to a number, got 0.5"),
        (lambda: lb.AgeLogit(1.0, lambda _: jnp.ones(2)), r"`weight` must .* shape \(2,\)"),
        (lambda: lb.LateLogit(-1.0, 0.5), "`sensitivity` must be non-negative"),
        (lambda: lb.LateLogit(1.0, -0.5), "`lag` must be non-negative .* -0.5 s"),
    ],
)
def test_wrong_arguments_are_named(monkeypatch, build, words):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=words):
        build()


@pytest.mark.parametrize(
    "build",
    [
        lambda x: lb.LateLogit(1.0, x),
        lambda x: lb.LateLogit(x, 1.0),
        lambda x: lb.AgeLogit(x, jnp.exp),
        lambda x: filtered(sensitivity=x),
        lambda x: filtered(gains=jnp.array([-0.5, 1.0]) + x - x),
    ],
    ids=["lag", "late", "age", "filter", "gains"],
)
def test_traced_numbers_out_of_their_domain_are_flagged(build):
    def is_valid(number):
        return lb.System(1.0, 1.0, lb.Erlang(1.0, 2), build(number)).valid

    assert jax.jit(jax.vmap(is_valid))(jnp.array([1.0, -np.inf])).tolist() == [True, False]
