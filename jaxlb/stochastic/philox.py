"""Philox4x32-10: random words that depend on a key and a counter alone, element by element.

JAX has this generator too (`impl="philox4x32"`), but joins its four words to one or drops half of
them, and so takes several times as long for each. A counter says what a word is for, so that
results do not depend on how replicas are batched, ordered or spread over devices.

Source: Salmon, Moraes, Dror and Shaw (2011), Parallel random numbers: as easy as 1, 2, 3, SC'11.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Key, UInt32

ROUNDS = 10
MULTIPLIERS = np.uint32(0xD2511F53), np.uint32(0xCD9E8D57)
BUMPS = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)

Word = UInt32[Array, "..."]


class Stream(NamedTuple):
    """Where words come from: the key's two, and those of the counter that say which replica, or
    which of many, and which use of it."""

    key: tuple[Word, Word]
    replica: Word
    use: Word


def stream(key: Key[Array, ""], replica: Any, use: Any) -> Stream:
    """The stream of one replica, or of each of many, for one use, from any JAX key."""
    first, second = jr.bits(key, (2,), jnp.uint32)
    replica, use = (jnp.asarray(value).astype(jnp.uint32) for value in (replica, use))
    return Stream((first, second), replica, use)


def philox(key: tuple[Word, ...], counter: tuple[Word, ...]) -> tuple[Word, ...]:
    """Four words for each key of two and counter of four; arrays that broadcast together."""
    (k0, k1), (x0, x1, x2, x3) = key, counter
    for _ in range(ROUNDS):
        high0, low0 = _product(MULTIPLIERS[0], x0)
        high1, low1 = _product(MULTIPLIERS[1], x2)
        x0, x1, x2, x3 = high1 ^ x1 ^ k0, low1, high0 ^ x3 ^ k1, low0
        k0, k1 = k0 + BUMPS[0], k1 + BUMPS[1]
    return x0, x1, x2, x3


def uniforms(stream: Stream, step: Any, count: int, dtype: Any) -> Float[Array, "count ..."]:
    """`count` numbers in (0, 1), neither end included, for one step of each replica of the stream.

    Of 52 bits in float64, of 23 in float32.
    """
    double = jnp.dtype(dtype) == jnp.float64
    each = 2 if double else 1
    block = jnp.arange(-(-count * each // 4), dtype=jnp.uint32)
    block = block.reshape(-1, *[1] * stream.replica.ndim)
    counter = stream.replica, jnp.asarray(step).astype(jnp.uint32), block, stream.use
    words = philox(stream.key, counter)
    if double:
        pairs = [(_double(*words[:2]), _double(*words[2:]))]
    else:
        parts = [((word >> 9).astype(dtype) + 0.5) * 2.0**-23 for word in words]
        pairs = [(parts[0], parts[1]), (parts[2], parts[3])]
    # XLA for CPUs has no loop of two results, but complex ones: else all is done for each part.
    both = jax.lax.optimization_barrier([jax.lax.complex(*pair) for pair in pairs])
    return jnp.concatenate([part for pair in both for part in (pair.real, pair.imag)])[:count]


def _double(high: Word, low: Word) -> Float[Array, "..."]:
    whole = high.astype(jnp.float64) * 2.0**20 + (low >> 12).astype(jnp.float64)
    return (whole + 0.5) * 2.0**-52


def _product(multiplier: np.uint32, word: Word) -> tuple[Word, Word]:
    """High and low word of a product."""
    if jax.config.read("jax_enable_x64"):
        # Not `jax.lax.mulhi`, which has no form for programs over several devices.
        whole = word.astype(jnp.uint64) * np.uint64(multiplier)
        return (whole >> 32).astype(jnp.uint32), whole.astype(jnp.uint32)
    # By halves of words, where there are no longer ones.
    low, high = word & 0xFFFF, word >> 16
    least, most = np.uint32(multiplier & 0xFFFF), np.uint32(multiplier >> 16)
    middle = high * least + (low * least >> 16)
    other = low * most + (middle & 0xFFFF)
    return high * most + (middle >> 16) + (other >> 16), multiplier * word
