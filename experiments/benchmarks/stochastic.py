"""How fast are random paths, against the paper's own way (SimPy) and compiled loops (Numba)?

Figure 3: lambda 15, mu 1, D 1, theta 1, L 2, eta 100, t in [0, 20]: 229 600 events a path. All in
one run on one core; times are process CPU seconds for one path, compilation apart, the least of
several.

Run:     python -m experiments.benchmarks.stochastic
Needs:   SimPy (extra `test`) and Numba (extra `bench`); a peer that is missing is left out.
Writes:  experiments/benchmarks/results/stochastic.json
Cost:    half a minute on one core.
"""

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

import jaxlb as lb
from tests.oracles import simpy_paths

from .. import _record

RESULT = Path(__file__).parent / "results" / "stochastic.json"


@dataclass(frozen=True)
class Config:
    """What is timed."""

    horizon: float = 20.0
    records: int = 21
    scale: int = 100
    replicas: int = 512
    steps: tuple[float, ...] = (0.05, 0.1)
    simpy_replicas: int = 2
    numba_replicas: int = 20
    repetitions: int = 5


def least(function: Callable[[int], object], paths: int, repetitions: int) -> float:
    """Seconds for one path: the least of several runs, each with its own seed, after one more."""
    function(0)
    spent = []
    for seed in range(1, repetitions + 1):
        begin = time.process_time()
        jax.block_until_ready(function(seed))
        spent.append(time.process_time() - begin)
    return min(spent) / paths


def ours(config: Config, times: np.ndarray) -> dict[str, float]:
    """Seconds for a path of each of our methods."""
    system = lb.System(15.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0))

    def seconds(replicas: int, **options) -> float:
        def paths(seed: int):
            key = jax.random.key(seed)
            return lb.stochastic.simulate(
                system, key, times, config.scale, replicas, **options
            ).jobs

        return least(paths, replicas, config.repetitions)

    rows = {f"exact, {n} replicas": seconds(n) for n in (1, config.replicas)}
    for step in config.steps:
        rows[f"leap, h = {step}"] = seconds(config.replicas, method="leap", step_size=step)
    return rows


def peers(config: Config, times: np.ndarray) -> dict[str, float]:
    """Seconds for a path of each peer that is installed."""

    def by_simpy(seed: int):
        return simpy_paths(
            np.random.default_rng(seed),
            times,
            replicas=config.simpy_replicas,
            scale=config.scale,
            arrival_rate=15.0,
            service_rate=1.0,
            action_delay=1.0,
            stages=2,
            sensitivity=1.0,
        )

    rows = {"SimPy": least(by_simpy, config.simpy_replicas, 2)}
    if importlib.util.find_spec("numba") is None:
        print("Numba is not installed: left out.")
        return rows
    from . import numba_direct

    def by_numba(seed: int):
        rng = np.random.default_rng(seed)
        for _ in range(config.numba_replicas):
            numba_direct.path(rng, times, config.scale, 15.0, 1.0, 1.0, 2, 1.0)

    rows["Numba, direct method"] = least(by_numba, config.numba_replicas, 2)
    return rows


def run(config: Config) -> dict:
    """Seconds for a path, and how many times faster each of our methods is than each peer."""
    times = np.linspace(0.0, config.horizon, config.records)
    theirs = peers(config, times)
    rows: dict[str, dict] = {name: {"seconds_per_path": spent} for name, spent in theirs.items()}
    for name, spent in ours(config, times).items():
        ratios = {f"times {peer}": other / spent for peer, other in theirs.items()}
        rows[name] = {"seconds_per_path": spent, **ratios}
    return rows


if __name__ == "__main__":
    _record.on_one_core()
    _record.main(run, Config(), RESULT)
