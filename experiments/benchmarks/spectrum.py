"""How fast is the rightmost root, against LAPACK on a batch of dense matrices, in one run?

Random systems with mu D in 0.01 to 100 and lambda theta D in 0.001 to 1000, on one core; process
CPU time for a point, compilation apart, the lower quartile of several repetitions taken in turns.
The peer is `numpy.linalg.eigvals` on a batch of matrices A_L. Also a grid of 10^7 points in one
call: its rate and its memory; and what the compiled program does for a point: operations, bytes,
loops.

Run:     python -m experiments.benchmarks.spectrum
Writes:  experiments/benchmarks/results/spectrum.json
Cost:    two minutes on one core.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxlb as lb

from .. import _record

RESULT = Path(__file__).parent / "results" / "spectrum.json"


@dataclass(frozen=True)
class Config:
    """What is timed."""

    points: int = 16384
    stages: tuple[int, ...] = (2, 8, 32, 128)
    dense_points: tuple[int, ...] = (16384, 4096, 512, 32)
    repetitions: int = 40
    grid: int = 10_000_000


def abscissa(*parameters):
    """Spectral abscissa from lambda, mu, D, L and theta."""
    return lb.stability.erlang_root(*parameters).root.real


def parameters(points: int, stages: float) -> list[jax.Array]:
    """Random lambda = 1, mu, D = 1, L and theta."""
    rng = np.random.default_rng(0)
    one, service = np.ones(points), 10 ** rng.uniform(-2, 2, points)
    gain = 10 ** rng.uniform(-3, 3, points)
    return [jnp.asarray(value) for value in (one, service, one, stages * one, gain)]


def nanoseconds(work: dict[str, tuple[Callable[[], object], int]], repetitions: int) -> dict:
    """Process CPU time for a point of each work, which is a function and its number of points."""
    spent = {name: [] for name in work}
    for _ in range(repetitions + 1):
        for name, (function, points) in work.items():
            # Caches are cold after another's work.
            jax.block_until_ready(function())
            begin = time.process_time()
            jax.block_until_ready(function())
            spent[name].append((time.process_time() - begin) / points)
    # The first compiles.
    return {name: 1e9 * np.quantile(seconds[1:], 0.25) for name, seconds in spent.items()}


def matrices(service: np.ndarray, gain: np.ndarray, stages: int) -> np.ndarray:
    """A_L of equation (12) for each point, with D = 1."""
    chain = np.diag(np.full(stages, float(stages)), -1) - stages * np.eye(stages + 1)
    batch = np.broadcast_to(chain, (len(service), *chain.shape)).copy()
    batch[:, 0, 0], batch[:, 0, -1], batch[:, 1, 0] = -service, stages, -gain
    return batch


def against_lapack(config: Config) -> dict:
    """Nanoseconds a point for each number of stages, and ratios."""
    value = jax.jit(jax.vmap(abscissa))
    gradient = jax.jit(jax.vmap(jax.value_and_grad(abscissa, (0, 1, 2, 4))))
    rows = {}
    for stages, few in zip(config.stages, config.dense_points, strict=True):
        given = parameters(config.points, stages)
        batch = matrices(np.asarray(given[1][:few]), np.asarray(given[4][:few]), stages)
        work = {
            "value_ns": (lambda given=given: value(*given), config.points),
            "value_and_four_gradients_ns": (lambda given=given: gradient(*given), config.points),
            "numpy_eigvals_ns": (lambda batch=batch: np.linalg.eigvals(batch), few),
        }
        row = nanoseconds(work, config.repetitions)
        row["ratio_to_numpy"] = row["numpy_eigvals_ns"] / row["value_ns"]
        row["gradients_to_value"] = row["value_and_four_gradients_ns"] / row["value_ns"]
        rows[f"L = {stages}"] = row
    return rows


def one_large_grid(config: Config) -> dict:
    """A grid in one call: its rate against that of a small batch, and memory beyond its result."""
    small, large = parameters(config.points, 8.0), parameters(config.grid, 8.0)
    in_one = jax.jit(abscissa).lower(*large).compile()
    value = jax.jit(abscissa)
    work = {
        "small_batch_ns": (lambda: value(*small), config.points),
        "grid_ns": (lambda: in_one(*large), config.grid),
    }
    row = nanoseconds(work, 8)
    row["rate_to_small_batch"] = row["small_batch_ns"] / row["grid_ns"]
    memory: Any = in_one.memory_analysis()
    row["extra_GiB"] = memory.temp_size_in_bytes / 2**30
    return row


def program(config: Config) -> dict:
    """What the compiled program does for a point, as XLA counts it."""
    given = parameters(config.points, 8.0)
    compiled = jax.jit(abscissa).lower(*given).compile()
    cost: Any = compiled.cost_analysis()
    entry = str(compiled.as_text()).split("ENTRY")[1]
    return {
        "flops": cost["flops"] / config.points,
        "transcendentals": cost["transcendentals"] / config.points,
        "bytes": cost["bytes accessed"] / config.points,
        "loops": entry.count(" fusion("),
    }


def run(config: Config) -> dict:
    """All tables."""
    return {
        "against_lapack": against_lapack(config),
        "one_large_grid": one_large_grid(config),
        "program_a_point": program(config),
    }


if __name__ == "__main__":
    _record.on_one_core()
    _record.main(run, Config(), RESULT)
