"""How fast is the rightmost root, against LAPACK on a batch of dense matrices, in one run?

Random systems with mu D in 0.01 to 100 and lambda theta D in 0.001 to 1000; process CPU time for a
point, compilation apart. The peer is `numpy.linalg.eigvals` on the batch of matrices A_L.

Run:     python -m experiments.benchmarks.spectrum
Writes:  experiments/benchmarks/results/spectrum.json
Cost:    about a minute on one core.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

import jaxlb as lb

from .. import _record

RESULT = Path(__file__).parent / "results" / "spectrum.json"


@dataclass(frozen=True)
class Config:
    """What is timed."""

    points: int = 1_000_000
    stages: tuple[int, ...] = (2, 8, 32, 128)
    dense_points: tuple[int, ...] = (100_000, 20_000, 2_000, 100)


def seconds(work: Callable[[], object]) -> float:
    """Process CPU seconds of the second call."""
    jax.block_until_ready(work())
    begin = time.process_time()
    jax.block_until_ready(work())
    return time.process_time() - begin


def matrices(service: np.ndarray, gain: np.ndarray, stages: int) -> np.ndarray:
    """A_L of equation (12) for each point, with D = 1."""
    chain = np.diag(np.full(stages, float(stages)), -1) - stages * np.eye(stages + 1)
    batch = np.broadcast_to(chain, (len(service), *chain.shape)).copy()
    batch[:, 0, 0], batch[:, 0, -1], batch[:, 1, 0] = -service, stages, -gain
    return batch


def run(config: Config) -> dict:
    """Nanoseconds a point for each number of stages, and the ratio to LAPACK's."""
    rng = np.random.default_rng(0)
    one = np.ones(config.points)
    service, gain = 10 ** rng.uniform(-2, 2, config.points), 10 ** rng.uniform(-3, 3, config.points)

    def abscissa(*parameters):
        return lb.stability.erlang_root(*parameters).root.real

    value = jax.jit(jax.vmap(abscissa))
    gradient = jax.jit(jax.vmap(jax.value_and_grad(abscissa, (0, 1, 2, 4))))
    rows = {}
    for stages, few in zip(config.stages, config.dense_points, strict=True):
        given = one, service, one, stages * one, gain
        batch = matrices(service[:few], gain[:few], stages)
        row = {
            "erlang_root_ns": 1e9 * seconds(lambda given=given: value(*given)) / config.points,
            "with_four_gradients_ns": 1e9
            * seconds(lambda given=given: gradient(*given))
            / config.points,
            "numpy_eigvals_ns": 1e9 * seconds(lambda batch=batch: np.linalg.eigvals(batch)) / few,
        }
        row["ratio"] = row["numpy_eigvals_ns"] / row["erlang_root_ns"]
        rows[stages] = row
    return rows


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    config = Config()
    rows = run(config)
    _record.save(RESULT, config, rows)
    for stages, row in rows.items():
        print(f"L = {stages:3d}", {name: round(value, 1) for name, value in row.items()})
