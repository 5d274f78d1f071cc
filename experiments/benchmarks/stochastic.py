"""How fast are random paths, and how true, against other simulators in the same run?

Figure 3: lambda 15, mu 1, D 1, theta 1, L 2, eta 100, t in [0, 20]: 229 600 events a path. All in
one run on one core; times are CPU seconds of the process and its children for one path,
compilation apart, the least of several. Each peer is first shown to simulate the same system.

Run:     python -m experiments.benchmarks.stochastic
Needs:   SimPy (extra `test`), and Numba, rebop, GillesPy2 with a C++ compiler and stochastix
         (extra `bench`); a peer that is missing is left out.
Writes:  experiments/benchmarks/results/stochastic.json
Cost:    four minutes on one core.
"""

import importlib
import importlib.util
import resource
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxlb as lb

from .. import _record
from .case import Case, Simulator

RESULT = Path(__file__).parent / "results" / "stochastic.json"
MANY = "Numba, direct method, L = 50"


@dataclass(frozen=True)
class Config:
    """What is timed."""

    case: Case = field(default_factory=Case)
    replicas: int = 512
    steps: tuple[float, ...] = (0.05, 0.1)
    stages: int = 50
    marks_replicas: int = 64
    direct_replicas: int = 2
    accuracy_replicas: int = 6000
    accuracy_step: float = 0.05
    repetitions: int = 5


@dataclass(frozen=True)
class Peer:
    """A simulator of others: a function of a module here that needs a package."""

    package: str
    module: str
    function: str
    replicas: int
    exact: bool = True
    repetitions: int = 2


PEERS = {
    "SimPy": Peer("simpy", "simpy_jobs", "jobs", 2),
    "Numba, direct method": Peer("numba", "numba_direct", "direct", 20, repetitions=5),
    "rebop, direct method": Peer("rebop", "rebop_direct", "direct", 20, repetitions=3),
    "GillesPy2, direct method": Peer("gillespy2", "gillespy2_paths", "direct", 20),
    "GillesPy2, leaping": Peer("gillespy2", "gillespy2_paths", "leaping", 40, exact=False),
    "GillesPy2, leaps of 0.05": Peer(
        "gillespy2", "gillespy2_paths", "fixed_leaping", 100, exact=False
    ),
    "stochastix, direct method": Peer("stochastix", "stochastix_paths", "direct", 1),
    "stochastix, leaping": Peer("stochastix", "stochastix_paths", "leaping", 4, exact=False),
}

# How many times faster than a peer each of our methods must be.
BOUNDS = (
    ("exact, 512 replicas", "Numba, direct method", 1.3),
    ("exact, 512 replicas", "SimPy", 80.0),
    ("exact, 512 replicas", "rebop, direct method", 3.0),
    ("marks, L = 50", MANY, 5.0),
    ("leap, h = 0.05", "Numba, direct method", 35.0),
    ("leap, h = 0.05", "GillesPy2, leaping", 120.0),
    ("leap, h = 0.05", "SimPy", 2500.0),
    ("leap, h = 0.05", "stochastix, leaping", 100.0),
    ("Gaussian leap, h = 0.05", "Numba, direct method", 120.0),
)
LARGEST_RMS_Z = 1.5


def cpu_seconds() -> float:
    """Of this process and the children that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in used)


def least(function: Callable[[int], Any], paths: int, repetitions: int) -> tuple[float, list]:
    """Seconds for one path, the least of several runs after a first, and what all have given."""
    given = [function(0)]
    spent = []
    for seed in range(1, repetitions + 1):
        begin = cpu_seconds()
        given.append(jax.block_until_ready(function(seed)))
        spent.append(cpu_seconds() - begin)
    return min(spent) / paths, given


def simulate(case: Case, seed: int, replicas: int, **options) -> lb.stochastic.Ensemble:
    """By one of our methods."""
    delay = lb.Erlang(case.action_delay, case.stages)
    routing = lb.Logit(case.sensitivity)
    system = lb.System(case.arrival_rate, case.service_rate, delay, routing)
    key = jax.random.key(seed)
    return lb.stochastic.simulate(system, key, case.times, case.scale, replicas, **options)


def ours(config: Config) -> dict[str, float]:
    """Seconds for a path of each of our methods."""

    def seconds(case: Case, replicas: int, repetitions: int = config.repetitions, **options):
        def paths(seed: int):
            return simulate(case, seed, replicas, **options).jobs

        return least(paths, replicas, repetitions)[0]

    case = config.case
    rows = {f"exact, {n} replicas": seconds(case, n) for n in (1, config.replicas)}
    for name, method in (("leap", "leap"), ("Gaussian leap", "gaussian_leap")):
        for step in config.steps:
            rows[f"{name}, h = {step}"] = seconds(
                case, config.replicas, method=method, step_size=step
            )
    many = replace(case, stages=config.stages)
    suffix = f"L = {config.stages}"
    rows[f"marks, {suffix}"] = seconds(many, config.marks_replicas, method="marks")
    rows[f"direct method, {suffix}"] = seconds(many, config.direct_replicas, 1, method="direct")
    return rows


def simulator(peer: Peer, case: Case) -> Simulator | None:
    """The peer's, or none if it is not installed."""
    if importlib.util.find_spec(peer.package) is None:
        return None
    module = importlib.import_module(f".{peer.module}", __package__)
    return getattr(module, peer.function)(case)


def peers(config: Config, truth: Any) -> tuple[dict[str, float], dict[str, dict]]:
    """Seconds for a path of each peer that is installed, and how it agrees with our exact one."""
    seconds, agreement = {}, {}
    for name, peer in PEERS.items():
        paths = simulator(peer, config.case)
        if paths is None:
            print(f"{peer.package} is not installed: {name} is left out.")
            continue
        seconds[name], given = least(
            lambda seed, paths=paths, count=peer.replicas: paths(seed, count),
            peer.replicas,
            peer.repetitions,
        )
        agreement[name] = agrees(name, peer, np.concatenate(given), truth)
        print(name, f"{seconds[name]:.4g} s", agreement[name], flush=True)
    peer = PEERS["Numba, direct method"]
    many = simulator(peer, replace(config.case, stages=config.stages))
    if many is not None:
        count = config.direct_replicas
        seconds[MANY], _ = least(lambda seed: many(seed, count), count, 2)
    return seconds, agreement


def agrees(name: str, peer: Peer, queue: np.ndarray, truth: Any) -> dict[str, float]:
    """Mean jobs in service at server 1 against exact ones; fails if the system is another one.

    Exact peers: the largest difference at any record after the first in standard errors, of which
    the variance is that of our exact paths; 4.5 allow 2e-4 false alarms in 20 records. Leaps have
    errors of their own, which grow with the oscillations: 5 % are allowed up to the second record.
    """
    mean, variance = (part[1:, 0, -1] for part in (truth.mean, truth.variance))
    difference = np.abs(queue[:, 1:, 0].mean(axis=0) - mean)
    z = (difference / np.sqrt(variance * (1 / len(queue) + 1 / truth.count))).max()
    relative = (difference / mean)[:2].max()
    if z > 4.5 if peer.exact else relative > 0.05:
        raise AssertionError(f"{name} simulates another system: z {z}, relative {relative}.")
    return {"paths": len(queue), "largest z": float(z), "early relative error": float(relative)}


def accuracy(config: Config, truth: Any) -> dict[str, float]:
    """Root-mean-square z of the mean imbalance after time zero, by both standard errors."""
    found = {}
    for method in ("leap", "gaussian_leap", "poisson_leap"):
        leaps = statistics(config, 2, method=method, step_size=config.accuracy_step)
        squares = [part.imbalance_variance[1:] / part.count for part in (truth, leaps)]
        difference = leaps.imbalance_mean[1:] - truth.imbalance_mean[1:]
        found[method] = float(np.sqrt(np.mean(difference**2 / sum(squares))))
    return found


def statistics(config: Config, seed: int, **options) -> lb.stochastic.Statistics:
    """Means and variances over many of our paths."""
    keep = "mean", "variance"
    return simulate(config.case, seed, config.accuracy_replicas, keep=keep, **options).statistics


def bounds(seconds: dict[str, float], theirs: dict[str, float], rms_z: dict[str, float]) -> dict:
    """What was demanded, what was found, and whether it is met; of the peers that there are."""
    found = {}
    for mine, peer, factor in BOUNDS:
        if peer in theirs:
            ratio = theirs[peer] / seconds[mine]
            found[f"{mine}: {factor:g} times {peer}"] = {"found": ratio, "met": ratio >= factor}
    z = rms_z["leap"]
    found[f"leap: rms z below {LARGEST_RMS_Z}"] = {"found": z, "met": z < LARGEST_RMS_Z}
    return found


def run(config: Config) -> dict:
    """Seconds for a path, how many times faster each of our methods is than each peer, accuracy."""
    truth = statistics(config, 1)
    theirs, agreement = peers(config, truth)
    mine = ours(config)
    rms_z = accuracy(config, truth)
    rows: dict[str, dict] = {
        name: {"seconds_per_path": spent, **agreement.get(name, {})}
        for name, spent in theirs.items()
    }
    for name, spent in mine.items():
        # Only peers with the same number of stages.
        alike = [peer for peer in theirs if (peer == MANY) == name.endswith(f"L = {config.stages}")]
        ratios = {f"times {peer}": theirs[peer] / spent for peer in alike}
        rows[name] = {"seconds_per_path": spent, **ratios}
    rows["rms z of the mean imbalance"] = rms_z
    rows["bounds"] = bounds(mine, theirs, rms_z)
    return rows


if __name__ == "__main__":
    _record.on_one_core()
    _record.main(run, Config(), RESULT)
