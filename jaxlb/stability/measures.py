"""Measures of how an imbalance dies out, from the rightmost root."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from ..model.system import System, require_one
from .domain import of_system
from .spectrum import rightmost_root


def decay_time(system: System) -> Float[Array, ""]:
    """Time in which a small imbalance falls to 1 / e in the long run, s; infinite if it does not.

    Minus one over the spectral abscissa where that is negative. Differentiable, with derivative
    zero where it is infinite; errors, accuracy and cost as `rightmost_root`.
    """
    require_one(system)
    system.require_two_alike()
    return _decay_time(system)


@of_system
def _decay_time(system: System) -> Float[Array, ""]:
    abscissa = rightmost_root(system).real
    grows = abscissa >= 0
    return jnp.where(grows, jnp.inf, -1 / jnp.where(grows, -1.0, abscissa))


def damping_ratio(system: System) -> Float[Array, ""]:
    """-Re r / |r| of the rightmost root r, from -1 to 1.

    One without oscillation, zero on the Hopf boundary, negative beyond it. At r = 0 it is given as
    zero. Differentiable; errors, accuracy and cost as `rightmost_root`.
    """
    require_one(system)
    system.require_two_alike()
    return _damping_ratio(system)


@of_system
def _damping_ratio(system: System) -> Float[Array, ""]:
    root = rightmost_root(system)
    rest = (root.real == 0) & (root.imag == 0)
    real, imag = jnp.where(rest, 1.0, root.real), jnp.where(rest, 0.0, root.imag)
    return jnp.where(rest, 0.0, -real / jnp.hypot(real, imag))
