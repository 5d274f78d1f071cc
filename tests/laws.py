"""Delay laws by their transform, for tests of more than one module."""

import jax.numpy as jnp


def window(width):
    """Uniform on 0 to `width`, that of a moving average: the example of `TransformDelay`."""

    def transform(r):
        still = r == 0
        z = jnp.where(still, 1.0, r * width)
        series = 1 - r * width / 2 + (r * width) ** 2 / 6
        return jnp.where(still, series, -jnp.expm1(-z) / z)

    return transform
