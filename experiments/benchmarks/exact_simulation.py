"""How fast is exact simulation, against the paper's own way (SimPy), in one run?

Figure 3: lambda 15, mu 1, D 1, theta 1, L 2, eta 100, t in [0, 20], 201 records. Both draw the same
law; times are process CPU seconds for one path, compilation apart.

Run:     python -m experiments.benchmarks.exact_simulation
Needs:   the `test` extra, for SimPy.
Writes:  experiments/benchmarks/results/exact_simulation.json
Cost:    about a minute on one core.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

import jaxlb as lb
from tests.oracles import simpy_paths

from .. import _record

RESULT = Path(__file__).parent / "results" / "exact_simulation.json"


@dataclass(frozen=True)
class Config:
    """What is timed."""

    horizon: float = 20.0
    records: int = 201
    scale: int = 100
    simpy_replicas: int = 5
    replicas: tuple[int, ...] = (1, 16, 128)


def run(config: Config) -> dict:
    """Seconds for a path by SimPy and by jaxlb for each number of replicas."""
    times = np.linspace(0.0, config.horizon, config.records)
    rates = {"arrival_rate": 15.0, "service_rate": 1.0, "sensitivity": 1.0}
    begin = time.process_time()
    simpy_paths(
        np.random.default_rng(0),
        times,
        replicas=config.simpy_replicas,
        scale=config.scale,
        action_delay=1.0,
        stages=2,
        **rates,
    )
    simpy = (time.process_time() - begin) / config.simpy_replicas
    rows = {"simpy": {"seconds_per_path": simpy, "ratio": 1.0}}
    system = lb.System(15.0, 1.0, lb.Erlang(1.0, 2), lb.Logit(1.0))
    for replicas in config.replicas:
        seconds = []
        for seed in range(2):
            begin = time.process_time()
            key = jax.random.key(seed)
            ensemble = lb.stochastic.simulate(
                system, key, times, scale=config.scale, replicas=replicas
            )
            jax.block_until_ready(ensemble.jobs)
            seconds.append(time.process_time() - begin)
        # The first call compiles too.
        rows[f"jaxlb, {replicas} replicas"] = {
            "seconds_per_path": seconds[1] / replicas,
            "ratio": simpy * replicas / seconds[1],
            "compile_seconds": seconds[0] - seconds[1],
        }
    return rows


if __name__ == "__main__":
    _record.main(run, Config(), RESULT)
