"""Every argument check of the package.

Each check names the argument, says what it must be, and shows what it got. Shapes and types
are checked always; values only where they are concrete, because under `jit`, `grad` and `vmap`
there is no number to look at yet.
"""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Key

# Probabilities and generator rows are written by hand with a few digits (0.333333): six must do.
SUM_TOLERANCE = 1e-6

# Wanted shape of an array: `None` for a length stands for any length, `ANY` for any shape.
Shape = tuple[int | None, ...] | None
ANY: Shape = None


def is_concrete(*values: Any) -> bool:
    """Whether every value can be looked at now, outside `jit`, `grad` and `vmap`."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(values))


def concrete(name: str, value: Any) -> None:
    """Raise `ValueError` if `value`, which fixes a shape, is traced."""
    if not is_concrete(value):
        raise ValueError(f"`{name}` fixes an array shape, so it must be concrete, got {value}.")


def is_positive(value: Any) -> Any:
    """Element by element, whether positive and finite, of numpy or traced arrays."""
    return (value > 0) & (value < np.inf)


def is_not_negative(value: Any) -> Any:
    """Element by element, whether zero or positive, and finite."""
    return (value >= 0) & (value < np.inf)


def is_stages(value: Any) -> Any:
    """Element by element, whether a number of stages: at least 1; infinity is a fixed delay."""
    return value >= 1


def are_probabilities(value: Any) -> Any:
    """Whether a vector of probabilities, summing to one."""
    return is_not_negative(value).all() & _sums_to_one(value)


def is_sub_generator(value: Any) -> Any:
    """Whether rates between phases: finite, and none negative but on the diagonal or to service."""
    rates = value[_off_diagonal(value)]
    return (abs(value) < np.inf).all() & (rates >= 0).all() & _rows_lead_out(value).all()


def _sums_to_one(value: Any) -> Any:
    return abs(value.sum() - 1) <= _sum_tolerance(value)


def _rows_lead_out(value: Any) -> Any:
    return value.sum(axis=1) <= _sum_tolerance(value) * abs(value.diagonal())


def _sum_tolerance(value: Any) -> float:
    # Or what rounding may leave of a long sum in single precision.
    return max(SUM_TOLERANCE, len(value) * float(jnp.finfo(value.dtype).eps))


def _off_diagonal(value: Any) -> np.ndarray:
    return ~np.eye(len(value), dtype=bool)


def as_float(name: str, value: Any, shape: Shape = ()) -> Float[Array, "..."]:
    """`value` as a floating-point array of the given shape.

    Arrays keep their float dtype; Python numbers and integers take JAX's default.
    Raises `ValueError` on another type or shape.
    """
    if isinstance(value, bool | str | bytes) or value is None:
        raise ValueError(f"`{name}` must be a number, got {value!r}.")
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"`{name}` must be a number, got {value!r}.") from error
    if not (jnp.issubdtype(array.dtype, jnp.integer) or jnp.issubdtype(array.dtype, jnp.floating)):
        raise ValueError(f"`{name}` must be real, got an array of {array.dtype}.")
    if shape is not None and (
        array.ndim != len(shape)
        or any(
            want is not None and want != have for want, have in zip(shape, array.shape, strict=True)
        )
    ):
        wanted = str(shape).replace("None", "any")
        hint = " (batch with jax.vmap)" if array.ndim > len(shape) else ""
        raise ValueError(f"`{name}` must have shape {wanted}, got shape {array.shape}{hint}.")
    dtype = array.dtype if jnp.issubdtype(array.dtype, jnp.floating) else jnp.result_type(float)
    # Not weakly typed: a Python number and an array of one value must not compile twice.
    return jax.lax.convert_element_type(array, dtype)


def kind(name: str, value: Any, wanted: type) -> None:
    """Raise `ValueError` unless `value` is of the wanted type."""
    if not isinstance(value, wanted):
        raise ValueError(f"`{name}` must be of type {wanted.__name__}, got {value!r:.200}.")


def ndim(name: str, value: Any) -> int:
    """Number of dimensions of `value`; `ValueError` if it has none, being ragged."""
    try:
        return jnp.asarray(value).ndim
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"`{name}` must be a number, got {value!r}.") from error


def require(
    name: str, value: Any, holds: Callable[[Any], Any], demand: str, unit: str = ""
) -> None:
    """Raise `ValueError` unless `holds(value)` everywhere; a traced value passes."""
    if not is_concrete(value):
        return
    number = np.asarray(value)
    if not np.all(holds(number)):
        shown = str(number)
        if number.ndim:
            shown = " ".join(np.array2string(number, threshold=8).split())
        raise ValueError(f"`{name}` must be {demand}, got {shown}{' ' + unit if unit else ''}.")


def positive(name: str, value: Any, unit: str = "", shape: Shape = ()) -> Any:
    """`value` as a float array, positive and finite."""
    array = as_float(name, value, shape)
    require(name, array, is_positive, "positive and finite", unit)
    return array


def not_negative(name: str, value: Any, unit: str = "", shape: Shape = ()) -> Any:
    """`value` as a float array, zero or positive, and finite."""
    array = as_float(name, value, shape)
    require(name, array, is_not_negative, "non-negative and finite", unit)
    return array


def finite(name: str, value: Any, unit: str = "", shape: Shape = ()) -> Any:
    """`value` as a float array without NaN or infinity."""
    array = as_float(name, value, shape)
    require(name, array, np.isfinite, "finite", unit)
    return array


def absent(values: dict[str, Any], where: str) -> None:
    """Raise `ValueError` unless every named value, which means nothing `where` it says, is None."""
    for name, value in values.items():
        if value is not None:
            raise ValueError(f"`{name}` must be left out {where}, got {value!r:.200}.")


def broadcast(values: dict[str, Any]) -> None:
    """Raise `ValueError` unless the named arrays broadcast together."""
    shapes = {name: value.shape for name, value in values.items()}
    try:
        jnp.broadcast_shapes(*shapes.values())
    except ValueError as error:
        names = ", ".join(f"`{name}`" for name in shapes)
        shown = ", ".join(map(str, shapes.values()))
        raise ValueError(f"{names} must broadcast together, got shapes {shown}.") from error


def integer(name: str, value: Any, least: int) -> int:
    """`value` as a Python integer of at least `least`; it fixes a shape, so it must be concrete."""
    concrete(name, value)
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool | np.bool_) or number < least:
        raise ValueError(f"`{name}` must be an integer of at least {least}, got {value!r}.")
    return number


def stages(name: str, value: Any, shape: Shape = ()) -> Float[Array, "..."]:
    """`value` as a number of stages: real, at least 1; infinity stands for a fixed delay."""
    array = as_float(name, value, shape)
    require(name, array, is_stages, "at least 1")
    return array


def probabilities(name: str, value: Any) -> Float[Array, " n"]:
    """`value` as a vector of probabilities: non-negative, summing to one within 1e-6."""
    array = not_negative(name, value, shape=(None,))
    if array.shape[0] == 0:
        raise ValueError(f"`{name}` must have at least one entry, got none.")
    require(name, array, _sums_to_one, "probabilities that sum to 1")
    return array


def sub_generator(name: str, value: Any, phases: int) -> Float[Array, "phases phases"]:
    """`value` as the generator of phases that all lead out sooner or later."""
    array = finite(name, value, "1/s", shape=(phases, phases))
    rates = "non-negative off its diagonal"
    require(name, array, lambda v: v[_off_diagonal(v)] >= 0, rates, "1/s")
    require(name, array, _rows_lead_out, "of row sums that are zero or negative", "1/s")
    require(name, array, _all_phases_lead_out, "such that every phase leads out", "1/s")
    return array


def _all_phases_lead_out(generator: np.ndarray) -> bool:
    leads_out = generator.sum(axis=1) < -_sum_tolerance(generator) * abs(np.diag(generator))
    for _ in range(len(generator)):
        leads_out = leads_out | ((generator > 0) @ leads_out)
    return bool(leads_out.all())


def times(name: str, value: Any) -> Float[Array, " times"]:
    """`value` as a vector of times: finite, non-negative, increasing."""
    array = not_negative(name, value, "s", shape=(None,))
    if array.shape[0] == 0:
        raise ValueError(f"`{name}` must have at least one entry, got none.")
    require(name, array, lambda v: np.all(np.diff(v) > 0), "increasing", "s")
    return array


def tolerances(rtol: Any, atol: Any, dtype: Any) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Relative and absolute tolerance of a solver; of those not given, what `dtype` allows.

    As arrays: as Python numbers each new value would recompile.
    """
    usual = 1e-8 if jnp.finfo(dtype).eps < 1e-8 else 1e-6
    given = {"rtol": rtol, "atol": atol}
    rtol, atol = (
        positive(name, usual if value is None else value).astype(dtype)
        for name, value in given.items()
    )
    return rtol, atol


def key(name: str, value: Any) -> Key[Array, ""]:
    """`value` as one typed random key; a key of the old kind, two 32-bit words, is taken too."""
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) and shape == ():
        return value
    if dtype == jnp.uint32 and shape == (2,):
        return jax.random.wrap_key_data(value)
    raise ValueError(f"`{name}` must be one random key such as jax.random.key(0), got {value!r}.")
