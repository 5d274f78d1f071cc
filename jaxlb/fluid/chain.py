"""A delay chain over one window of time, as matrices that all systems share.

In units of the mean delay the L stages of an Erlang delay have rate L, whatever the mean, so what
they do over a window of length h depends on L and h alone. The inflow is a polynomial on the
window, given at Chebyshev nodes. A job in stage k at the start is in stage k + n after a time s
with the Poisson probability of n at L s, and leaves with density L times that of L - k at L s.
Other delays have the same matrices from `jumps`.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

DEGREE = 24
# Window lengths, in units of time: one level is half as long as the level before.
LENGTHS = 4.0 * 0.5 ** np.arange(28)
# Where windows of an unknown system begin.
FIRST_LEVEL = 4
# Up to here a product with the matrix of a chain is faster than one by Fourier transforms.
MATRIX_STAGES = 64


class Chain(NamedTuple):
    """Matrices of one chain, for each level or for one; what is known stands left of them as a row.

    - `length`: of the window, in units of time.
    - `emptying`: from jobs in the stages at the start to the outflow at the nodes.
    - `passing`: from the inflow at the nodes to the outflow at the nodes.
    - `moving`: from jobs at the start to jobs at the end: a matrix, or for a long chain the
      transform of its first column.
    - `filling`: from the inflow at the nodes to jobs at the end.
    - `weighed`: like `emptying` and `passing`, to the weighted number of jobs at the nodes; none if
      the rule counts no job in transit.
    """

    length: Any
    emptying: Any
    passing: Any
    moving: Any
    filling: Any
    weighed: Any = None


def nodes() -> np.ndarray:
    """Chebyshev-Lobatto nodes of a window, as fractions of its length, first and last included."""
    return (1 - np.cos(np.pi * np.arange(DEGREE + 1) / DEGREE)) / 2


def coefficients() -> np.ndarray:
    """From values at the nodes to Chebyshev coefficients."""
    return np.linalg.inv(_chebyshev(nodes())).T


def integral() -> np.ndarray:
    """From values at the nodes to the integral from the start to each node, of a unit window."""
    points, weights = gauss(DEGREE)
    parts = [interpolate(end * points) @ (end * weights) for end in nodes()]
    return np.stack(parts, axis=1)


@functools.lru_cache(maxsize=16)
def chain(stages: int) -> Chain:
    """The matrices of every level, in float64."""
    levels = [_level(stages, length) for length in LENGTHS]
    return Chain(*(np.stack(parts) for parts in zip(*levels, strict=True)))


def _level(stages: int, length: float) -> tuple[np.ndarray, ...]:
    stage, mean = np.arange(1, stages + 1), stages * length
    # Enough points for the density of the delay, which is narrow in a long chain.
    points, weights = gauss(96 + 16 * math.isqrt(stages))
    values = interpolate(points)
    emptying = stages * poisson(stages - stage[:, None], mean * nodes())
    filling = values @ (length * weights * poisson(stage[:, None] - 1, mean * (1 - points))).T
    at = nodes()[:, None] * points
    density = stages * weights * poisson(stages - 1, mean * (nodes()[:, None] - at))
    density = length * nodes()[:, None] * density
    passing = np.einsum("nq,mnq->mn", density, interpolate(at.ravel()).reshape(-1, *at.shape))
    column = poisson(stage - 1, mean)
    if stages > MATRIX_STAGES:
        moving = np.fft.rfft(column, 2 * stages)
    else:
        ahead = stage - stage[:, None]
        moving = np.where(ahead >= 0, column[np.maximum(ahead, 0)], 0.0)
    return np.asarray(length), emptying, passing, moving, filling


def poisson(count: Any, mean: Any) -> np.ndarray:
    """Probability of `count` where `mean` are expected."""
    count, mean = np.broadcast_arrays(count, mean)
    factorials = np.cumsum(np.log(np.maximum(np.arange(count.max() + 1), 1)))
    log = np.log(np.where(mean > 0, mean, 1.0))
    chance = np.exp(count * log - mean - factorials[count])
    return np.where(mean > 0, chance, count == 0)


def gauss(points: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre points and weights on [0, 1]."""
    at, weights = np.polynomial.legendre.leggauss(points)
    return (at + 1) / 2, weights / 2


def interpolate(at: np.ndarray) -> np.ndarray:
    """From values at the nodes to values at other points of [0, 1]."""
    return coefficients() @ _chebyshev(at).T


def _chebyshev(at: np.ndarray) -> np.ndarray:
    """Chebyshev polynomials (columns) at points of [0, 1]."""
    angle = np.arccos(np.clip(2 * at - 1, -1, 1))
    return np.cos(np.arange(DEGREE + 1) * angle[:, None])
