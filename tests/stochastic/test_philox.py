"""Random words against published answers and JAX's own generator."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy import stats

from jaxlb.stochastic import philox


def words(*values):
    return tuple(jnp.uint32(value) for value in values)


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 2,
            (0xFFFFFFFF,) * 4,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0xA4093822, 0x299F31D0),
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_words_are_the_published_ones(key, counter, expected):
    """Known answers of the authors' library Random123."""
    assert philox.philox(words(*key), words(*counter)) == words(*expected)


def test_words_are_those_of_jax_for_its_own_counters():
    key = jr.key(7, impl="philox4x32")
    theirs = jr.bits(key, (1000,), jnp.uint64)
    zeros = jnp.zeros(1000, jnp.uint32)
    counter = zeros, jnp.arange(1000, dtype=jnp.uint32), zeros, zeros
    high, low, *_ = philox.philox(tuple(jr.key_data(key)), counter)
    np.testing.assert_array_equal((high.astype(jnp.uint64) << 32) | low, theirs)


def of_one(replica, step, count=7, use=3, dtype=jnp.float64):
    return philox.uniforms(philox.stream(jr.key(1), replica, use), step, count, dtype)


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_numbers_depend_on_replica_and_step_alone(dtype):
    """Whatever is drawn beside them, under jit and vmap, on either axis."""
    replicas = jnp.arange(5)
    one = jax.vmap(lambda replica: of_one(replica, 9, dtype=dtype))(replicas)
    other = jax.jit(jax.vmap(lambda replica: of_one(replica, 9, dtype=dtype), out_axes=-1))
    np.testing.assert_array_equal(one, other(replicas[::-1]).T[::-1])
    np.testing.assert_array_equal(one[3], of_one(3, 9, dtype=dtype))
    numbers = np.concatenate([one.ravel(), of_one(3, 10, dtype=dtype), of_one(3, 9, 7, 4, dtype)])
    assert len(np.unique(numbers)) == numbers.size


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.float32])
def test_numbers_are_uniform_and_never_at_an_end(dtype):
    """Kolmogorov-Smirnov, one p-value below 1e-6 in 1e6 new seeds."""
    numbers = np.asarray(of_one(0, 0, 200_000, dtype=dtype))
    assert numbers.dtype == dtype
    assert numbers.min() > 0
    assert numbers.max() < 1
    assert stats.kstest(numbers.astype(float), "uniform").pvalue > 1e-6
    # As many bits as were promised: no two alike among so many but by chance.
    assert len(np.unique(numbers)) > (199_990 if dtype == jnp.float64 else 195_000)


def test_extreme_words_stay_inside_the_unit_interval():
    assert philox._double(*words(0, 0)) == 2.0**-53
    assert philox._double(*words(0xFFFFFFFF, 0xFFFFFFFF)) == 1 - 2.0**-53
