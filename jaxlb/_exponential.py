"""The exponential of a generator: chances of a Markov chain after some time."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Terms of the series, and most halvings of the matrix, each of which doubles the rounding, up to
# 4e-9; they are enough for entries up to LARGEST.
TERMS, MOST_HALVINGS, LARGEST = 18, 24, 2.0**21


def of_generator(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """exp of a matrix without negative entries off its diagonal: sums of what is not negative."""
    shift = jnp.max(-jnp.diag(matrix))
    size = jnp.max(jnp.sum(jnp.abs(matrix), axis=1)) + shift
    halvings = jnp.clip(jnp.ceil(jnp.log2(jnp.maximum(size, 0.5))) + 1, 0, MOST_HALVINGS)
    scale = jnp.exp2(-halvings)
    identity = jnp.eye(len(matrix), dtype=matrix.dtype)
    part = (matrix + shift * identity) * scale
    power = identity
    for k in range(TERMS, 0, -1):
        power = identity + part @ power / k
    power = power * jnp.exp(-shift * scale)

    def square(power, k):
        return jnp.where(k < halvings, power @ power, power), None

    return jax.lax.scan(square, power, jnp.arange(MOST_HALVINGS))[0]
