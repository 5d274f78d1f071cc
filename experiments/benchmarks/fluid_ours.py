"""Our integrators of the fluid limit: by collocation, through Diffrax, by the method of steps."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import jaxlb as lb

from .delay_case import DelayCase
from .fluid_case import FluidCase, Integrator


def collocation(case: FluidCase) -> Integrator:
    """x of all systems at once."""
    return _run(case, method="collocation")


def diffrax(case: FluidCase) -> Integrator:
    """By Tsit5 at 1e-8, of all systems at once."""
    return _run(case, method="diffrax")


def method_of_steps(case: DelayCase) -> Integrator:
    """x of all systems with a deterministic delay."""

    def queue(numbers):
        settings = {"rtol": case.tolerance, "atol": case.tolerance}
        return _queue(case, numbers, lb.Deterministic(numbers[1]), **settings)

    return _compiled(case, queue)


def collocation_gradient(case: FluidCase) -> Integrator:
    """Slopes of the mean of x^2, in reverse mode."""
    return _compiled(case, jax.grad(partial(_mean_square, case)))


def collocation_scalar(case: FluidCase) -> Integrator:
    """The mean of x^2 alone: what the gradient's cost is compared with."""
    return _compiled(case, partial(_mean_square, case))


def _mean_square(case: FluidCase, numbers):
    return jnp.mean(_erlang_queue(case, numbers, method="collocation") ** 2)


def _run(case: FluidCase, **options) -> Integrator:
    return _compiled(case, lambda numbers: _erlang_queue(case, numbers, **options))


def _compiled(case: FluidCase, one) -> Integrator:
    many, numbers = jax.jit(jax.vmap(one)), jnp.asarray(case.numbers)
    return lambda: np.asarray(many(numbers))


def _erlang_queue(case: FluidCase, numbers, **options):
    return _queue(case, numbers, lb.Erlang(numbers[1], case.stages), **options)


def _queue(case: FluidCase, numbers, delay: lb.AbstractDelay, **options):
    theta, _, arrival_rate, service_rate, x = numbers
    system = lb.System(arrival_rate, service_rate, delay, lb.Logit(theta))
    return lb.fluid.solve_imbalance(system, case.times, x, **options).queue
