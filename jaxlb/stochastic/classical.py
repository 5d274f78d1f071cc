"""Classical tau-leaping, for comparison and teaching: Poisson and binomial counts of events.

Both hold the rates of all events during a step, so that a job moves at most one compartment in a
step and leaves as if it had been there all the time. `jaxlb.stochastic.leap` does neither.

What they do wrong, by the variance of the imbalance at time 2 for lambda 5, mu 1, D 1, theta 1,
L 1, scale 1 and steps of 1/8 (`experiments/leaping.py`): Poisson counts can take more jobs from a
compartment than it holds, some count becomes negative in a tenth of the paths, and the variance is
37 % too large. Binomial counts cannot, but the variance is still 21 % too large. Both are of first
order in the step, and Poisson leaping is unstable for steps beyond twice the mean time in a
compartment.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..model import dynamics
from ..model.system import System
from .leap import LeapInfo, LeapState
from .samplers import binomial, poisson


def num_draws(system: System) -> int:
    """Uniform numbers that one step of one replica takes."""
    return system.num_servers * len(dynamics.routes(system.phase_delay("a leap"))[0])


def step_size_alone(_: System, step_size: Float[Array, ""]) -> Float[Array, ""]:
    """What a step needs to know: its length."""
    return step_size


def poisson_step(
    uniforms: Float[Array, "draws replicas"],
    state: LeapState,
    scale: Float[Array, ""],
    system: System,
    step_size: Float[Array, ""],
) -> tuple[LeapState, LeapInfo]:
    """Explicit tau-leaping: each event as often as a Poisson number of mean rate * step.

    A rate that would be negative counts as zero.

    **Source:** Gillespie (2001), J. Chem. Phys. 115(4), 1716-1733.
    """
    rates, valid = _rates(state, scale, system)
    events = poisson(uniforms.reshape(rates.shape), step_size * jnp.maximum(rates, 0))
    change = dynamics.net_change(system.phase_delay("a leap"), events)
    return LeapState(state.jobs + change), LeapInfo(valid)


def binomial_step(
    uniforms: Float[Array, "draws replicas"],
    state: LeapState,
    scale: Float[Array, ""],
    system: System,
    step_size: Float[Array, ""],
) -> tuple[LeapState, LeapInfo]:
    """Binomial leaping: each job leaves its compartment with probability min(1, rate * step).

    Arrivals are Poisson. Where a job can leave in several ways, they are tried in turn.

    **Source:** Tian and Burrage (2004), J. Chem. Phys. 121(21), 10356-10364.
    """
    delay = system.phase_delay("a leap")
    rates, valid = _rates(state, scale, system)
    uniforms = uniforms.reshape(rates.shape)
    per_job = dynamics.event_rates(
        delay,
        system.service_rates,
        jnp.ones_like(rates[:, 0, 0]),
        jnp.ones_like(state.jobs[..., 0]),
    )
    source = dynamics.routes(delay)[0]
    events, left = {}, state.jobs
    for compartment in np.unique(source):
        ways = np.flatnonzero(source == compartment)
        if compartment == 0:
            events |= {way: poisson(uniforms[:, way], step_size * rates[:, way]) for way in ways}
            continue
        remaining = jnp.ones_like(per_job[:, :1])
        for way in ways:
            moved = jnp.minimum(step_size * per_job[:, way, None], remaining)
            chance = moved / jnp.where(remaining > 0, remaining, 1.0)
            here = left[:, compartment - 1]
            events[way] = binomial(uniforms[:, way], here, chance)
            left = left.at[:, compartment - 1].add(-events[way])
            remaining = remaining - moved
    counts = jnp.stack([events[way] for way in range(len(source))], axis=1)
    return LeapState(state.jobs + dynamics.net_change(delay, counts)), LeapInfo(valid)


def _rates(state: LeapState, scale: Float[Array, ""], system: System):
    """Rates of all events, and whether the rule gave probabilities."""
    delay = system.phase_delay("a leap")
    share = dynamics.shares(system, state.jobs, scale)
    inflow = scale * system.num_servers * system.arrival_rate * share
    rates = dynamics.event_rates(delay, system.service_rates, inflow, state.jobs)
    return rates, dynamics.are_shares(share)
