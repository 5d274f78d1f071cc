"""Our limit cycles, by harmonic balance."""

import jax
import jax.numpy as jnp
import numpy as np

import jaxlb as lb

from .cycle_case import CycleCase
from .fluid_case import Integrator

# Harmonics, and samples of half a period: no tail of these systems is beyond 1e-12.
SIZES = 32, 512


def cycles(case: CycleCase) -> Integrator:
    """Amplitude, period, steps of Newton's method and whether all is well, of all at once."""

    def one(numbers):
        cycle = _find(case, numbers)
        return jnp.stack([cycle.amplitude, cycle.period, cycle.steps, cycle.valid])

    return _compiled(case, one)


def gradient(case: CycleCase) -> Integrator:
    """Slopes of amplitude and period in theta, D, lambda and mu, in reverse mode."""

    def both(numbers):
        cycle = _find(case, numbers)
        return jnp.stack([cycle.amplitude, cycle.period])

    return _compiled(case, jax.jacrev(both))


def _find(case: CycleCase, numbers):
    theta, mean, arrival_rate, service_rate = numbers
    delay = lb.Erlang(mean, case.stages)
    system = lb.System(arrival_rate, service_rate, delay, lb.Logit(theta))
    return lb.fluid.limit_cycle.find(system, *SIZES)


def _compiled(case: CycleCase, one) -> Integrator:
    many, numbers = jax.jit(jax.vmap(one)), jnp.asarray(case.numbers[:, :4])
    return lambda: np.asarray(many(numbers))
