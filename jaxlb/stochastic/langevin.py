"""The chemical Langevin equation, solved by Diffrax: each event has a Brownian motion of its own.

    d jobs = sum over events of its change * (rate dt + sqrt(rate) dW).

Euler's method for it is Poisson leaping with normal numbers, and as far off for the same step: the
variance of the imbalance at time 2 for lambda 5, mu 1, D 1, theta 1, L 1, scale 1 is 37 % too large
for steps of 1/8, and 8 % for 1/32. Counts become negative where they are few, where rates are
taken as zero. The Gaussian leap is closer for the same step (`experiments/leaping.py`).

**Source:** Gillespie (2000), J. Chem. Phys. 113(1), 297-306.
"""

from typing import Any

import diffrax as dfx
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

from ..model import dynamics
from .paths import Given, Steps
from .samplers import root


@eqx.filter_jit
def langevin(given: Given, steps: Steps) -> Any:
    """Paths by Euler's method in Ito's sense, and whether each is valid."""
    system, scale = given.system, given.scale
    delay = system.phase_delay("the Langevin equation")
    change = jnp.asarray(dynamics.stoichiometry(delay), given.times.dtype)
    servers = jnp.eye(system.num_servers, dtype=given.times.dtype)
    shape = jax.ShapeDtypeStruct((system.num_servers, len(change)), given.times.dtype)

    def rates(jobs):
        return dynamics.propensities(system, jobs, scale)

    def drift(_, jobs, __):
        return dynamics.net_change(delay, rates(jobs))

    def diffusion(_, jobs, __):
        # Of each compartment (server, place) by the noise of each event (server, kind).
        return root(rates(jobs))[:, None, None] * change.T[:, None] * servers[:, None, :, None]

    def path(replica):
        key = jr.fold_in(given.key, replica)

        def to_next_record(carry, interval):
            jobs, valid = carry
            number, count, length = interval
            noise = dfx.UnsafeBrownianPath(shape, jr.fold_in(key, number))
            solution = dfx.diffeqsolve(
                dfx.MultiTerm(dfx.ODETerm(drift), dfx.ControlTerm(diffusion, noise)),
                dfx.Euler(),
                t0=jnp.zeros_like(length),
                t1=jnp.where(valid, count, 0) * length,
                dt0=length,
                y0=jobs,
                max_steps=None,
                # What takes fresh normal numbers for each step.
                adjoint=dfx.ForwardMode(),
                throw=False,
            )
            reached = solution.ys[0]  # pyright: ignore[reportOptionalSubscript]
            share = dynamics.shares(system, reached, scale)
            valid = valid & dynamics.are_shares(share) & jnp.all(jnp.isfinite(reached))
            jobs = jnp.where(valid, reached, jobs)
            return (jobs, valid), jobs

        # An empty interval first: XLA goes round in circles simplifying a loop over one.
        counts, lengths = jnp.append(0, steps.counts), jnp.append(steps.lengths[0], steps.lengths)
        intervals = jnp.arange(len(counts)), counts, lengths
        (_, valid), jobs = jax.lax.scan(to_next_record, (given.start, given.possible), intervals)
        return jobs[1:], valid

    return jax.vmap(path)(given.replicas)
