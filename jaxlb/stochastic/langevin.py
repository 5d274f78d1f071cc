"""The chemical Langevin equation, solved by Diffrax: each event has a Brownian motion of its own.

    d jobs = sum over events of its change * (rate dt + sqrt(rate) dW).

It is the diffusion limit of the event counts, not of a step: what it does wrong does not vanish
with the step. Where counts are few it makes them negative, where rates are taken as zero, and the
variance of the imbalance is too large: 36 % for lambda 5, mu 1, D 1, theta 1, L 1, scale 1 at time
2 (`experiments/leaping.py`). The Gaussian leap is closer at the same cost.

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
        return jnp.einsum("se,ec,sr->scre", root(rates(jobs)), change, servers)

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

        intervals = jnp.arange(len(steps.counts)), steps.counts, steps.lengths
        (_, valid), jobs = jax.lax.scan(to_next_record, (given.start, given.possible), intervals)
        return jobs, valid

    return jax.vmap(path)(given.replicas)
