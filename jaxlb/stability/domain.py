"""Numbers outside their domain: constructors refuse those they see; traced ones are flagged here.

A result is then NaN and its flags are false. Derivatives are cut off on both sides of the
computation, so that they are zero and not NaN, and spare the rest of a batch.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from ..model.system import System


def flagged(valid: Bool[Array, ""], function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(*arguments)`, flagged where not `valid`."""
    return _outlet(valid, function(*_inlet(valid, arguments)))


def of_system(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of a system of servers alike, flagged where the system is not valid."""

    @functools.wraps(function)
    def of_valid(system: System, *arguments: Any) -> Any:
        return flagged(is_valid(system), function, system, *arguments)

    return of_valid


@eqx.filter_jit
def is_valid(system: System) -> Bool[Array, ""]:
    """Whether the system is valid and its servers alike."""
    return system.valid & jnp.isfinite(system.common_service_rate)


@eqx.filter_jit
def _inlet(valid: Bool[Array, ""], arguments: Any) -> Any:
    def leaf_in(leaf):
        if not eqx.is_inexact_array(leaf):
            return leaf
        return jnp.where(valid, leaf, jax.lax.stop_gradient(leaf))

    return jax.tree.map(leaf_in, arguments)


@eqx.filter_jit
def _outlet(valid: Bool[Array, ""], result: Any) -> Any:
    def leaf_out(leaf):
        if leaf.dtype == bool:
            return leaf & valid
        if not eqx.is_inexact_array(leaf):
            return jnp.where(valid, leaf, 0)
        nan = complex(jnp.nan, jnp.nan) if jnp.iscomplexobj(leaf) else jnp.nan
        return jnp.where(valid, leaf, jnp.asarray(nan, leaf.dtype))

    return jax.tree.map(leaf_out, result)
