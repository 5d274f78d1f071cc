"""How good are linear noise and statistical linearisation? Against simulation, on and off balance.

The paper's system (lambda = 15, mu = 1, D = 1) at rest, at several gains lambda theta up to the
Hopf point and past it. Variances are over P_0 = 2 lambda / mu times the scale, that without
feedback. And what the two cost.

Run:     python -m experiments.stationary_variance
Writes:  experiments/results/stationary_variance.json
Cost:    under five minutes on one core.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxlb as lb

from . import _record

RESULT = Path(__file__).parent / "results" / "stationary_variance.json"


@dataclass(frozen=True)
class Config:
    """The system, and how long and how often it is simulated.

    `rows`: stages, servers, scale, sensitivity, that sensitivity being a multiple of the critical
    one if `of_critical`, and the weight of jobs in transit.
    """

    arrival_rate: float = 15.0
    service_rate: float = 1.0
    mean: float = 1.0
    replicas: int = 256
    settle: float = 100.0
    records: int = 20
    spacing: float = 4.0
    leap: float = 0.02
    seed: int = 11
    runs: int = 9
    timed_stages: tuple[int, ...] = (2, 10, 50)
    rows: tuple[tuple[int, int, float, float, bool, float], ...] = (
        (2, 2, 100.0, 0.1, False, 0.0),
        (2, 2, 100.0, 0.8, True, 0.0),
        (2, 2, 100.0, 0.95, True, 0.0),
        (2, 2, 100.0, 1.0, True, 0.0),
        (2, 2, 100.0, 1.2, True, 0.0),
        (2, 2, 100.0, 1.0, False, 0.0),
        (2, 2, 100.0, 1.0, False, 1.0),
        (2, 2, 10.0, 0.8, True, 0.0),
        (2, 2, 10.0, 0.95, True, 0.0),
        (2, 2, 10.0, 1.0, True, 0.0),
        (2, 2, 1.0, 0.95, True, 0.0),
        (2, 4, 10.0, 0.8, True, 0.0),
        (2, 4, 10.0, 0.95, True, 0.0),
        (10, 2, 100.0, 0.8, True, 0.0),
        (10, 2, 100.0, 0.95, True, 0.0),
        (10, 2, 100.0, 0.99, True, 0.0),
        (10, 2, 100.0, 1.0, True, 0.0),
        (10, 2, 100.0, 1.2, True, 0.0),
        (10, 2, 100.0, 1.0, False, 0.0),
        (10, 2, 100.0, 1.0, False, 1.0),
    )


def system(config: Config, stages, servers, sensitivity, of_critical, weight) -> lb.System:
    """The system of a row."""
    delay = lb.Erlang(config.mean, stages)
    rates = config.arrival_rate, config.service_rate
    unit = lb.System(*rates, delay, lb.Logit(1.0), servers)
    if of_critical:
        sensitivity = sensitivity * lb.stability.critical_sensitivity(unit)
    weights = jnp.full(stages, weight)
    rule = lb.WeightedLogit(sensitivity, weights) if weight else lb.Logit(sensitivity)
    return lb.System(*rates, delay, rule, servers)


def simulated(config: Config, whole: lb.System, scale: float) -> dict:
    """Variance of Q_1 - Q_2 of all replicas, its standard error, and the kurtosis."""
    times = config.settle + config.spacing * np.arange(config.records)
    balance = jnp.round(scale * lb.model.equilibrium(whole))
    # Marks do not know jobs in transit, and many stages are slow event by event.
    by_leaps = whole.num_phases > 2 and isinstance(whole.routing, lb.WeightedLogit)
    leaps = {"method": "leap", "step_size": config.leap} if by_leaps else {}
    key = jax.random.key(config.seed)
    paths = lb.stochastic.simulate(whole, key, times, scale, config.replicas, balance, **leaps)
    assert paths.valid.all()
    queue = np.asarray(paths.queue, float)
    # Servers are alike, so that the mean is zero.
    x = queue[..., 0] - queue[..., 1]
    of_replica = (x**2).mean(axis=1)
    return {
        "variance": of_replica.mean(),
        "error": of_replica.std(ddof=1) / np.sqrt(config.replicas),
        "kurtosis": (x**4).mean() / (x**2).mean() ** 2,
    }


def milliseconds(config: Config, stages: int) -> dict:
    """Of one core, compiled: the least of some runs."""
    delay = lb.Erlang(config.mean, stages)

    def whole(theta):
        return lb.System(config.arrival_rate, config.service_rate, delay, lb.Logit(theta))

    def covariance(theta):
        return lb.stochastic.stationary_covariance(whole(theta)).covariance[0, -1, 0, -1]

    def variance(theta):
        return lb.stochastic.imbalance_variance(whole(theta), 100.0).variance

    def transient(theta):
        times = jnp.linspace(0.0, 20.0, 21)
        return lb.stochastic.transient_covariance(whole(theta), times).covariance

    functions = {
        "stationary_covariance": covariance,
        "with its gradient": jax.value_and_grad(covariance),
        "imbalance_variance": variance,
        "with its gradient too": jax.value_and_grad(variance),
        "transient_covariance over 20 s": transient,
    }
    least = {}
    for name, function in functions.items():
        compiled = jax.jit(function)
        jax.block_until_ready(compiled(0.1))
        spent = []
        for _ in range(config.runs):
            start = time.perf_counter()
            jax.block_until_ready(compiled(0.1))
            spent.append(1e3 * (time.perf_counter() - start))
        least[name] = min(spent)
    return least


def run(config: Config) -> dict:
    """One row for each system: simulation with its standard error, and both approximations.

    `linear_noise` is null where balance is not stable.
    """
    rows = {}
    for stages, servers, scale, sensitivity, of_critical, weight in config.rows:
        whole = system(config, stages, servers, sensitivity, of_critical, weight)
        found = lb.stochastic.imbalance_variance(whole, scale)
        exact, linear = simulated(config, whole, scale), found.linear_noise
        open_loop = 2 * config.arrival_rate / config.service_rate * scale
        rule = whole.routing
        gain = config.arrival_rate * float(rule.sensitivity)  # pyright: ignore
        name = f"L {stages}, N {servers}, eta {scale:g}, kappa {gain:.4g}"
        rows[name + (f", weight {weight:g}" if weight else "")] = {
            "simulation": exact["variance"] / open_loop,
            "standard_error": exact["error"] / open_loop,
            "kurtosis": exact["kurtosis"],
            "linear_noise": float(linear) / open_loop if jnp.isfinite(linear) else None,
            "statistical_linearisation": float(found.variance) / open_loop,
            "gain_kept": float(found.effective_gain) / gain,
            "valid": bool(found.valid),
        }
    for stages in config.timed_stages:
        rows[f"milliseconds, L {stages}"] = milliseconds(config, stages)
    return rows


if __name__ == "__main__":
    _record.on_one_core()
    _record.main(run, Config(), RESULT)
