"""How accurate are trajectories, roots and residuals? The figures that the docstrings state.

Run:     python -m experiments.accuracy
Needs:   the `test` extra, for mpmath and SciPy.
Writes:  experiments/results/accuracy.json
Cost:    about a minute on one core.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
from scipy.integrate import solve_ivp

import jaxlb as lb

from . import _record

RESULT = Path(__file__).parent / "results" / "accuracy.json"


@dataclass(frozen=True)
class Config:
    """How many random systems, and with how many stages."""

    seed: int = 1
    roots: int = 400
    single_precision_roots: int = 2000
    residuals: int = 300
    trajectories: int = 16
    stages: tuple[int, ...] = (1, 2, 10, 20, 50, 100)
    trajectory_stages: tuple[int, ...] = (1, 2, 10, 50)


def system(parameters, stages: int) -> lb.System:
    """An Erlang system from its four numbers."""
    arrival_rate, service_rate, mean, sensitivity = parameters
    return lb.System(arrival_rate, service_rate, lb.Erlang(mean, stages), lb.Logit(sensitivity))


def fixed_cost(whole: lb.System):
    """Rightmost root by `erlang_root`."""
    return lb.stability.rightmost_root(whole)


def dense(whole: lb.System):
    """Rightmost root by eigenvalues."""
    values = lb.stability.eigenvalues(whole)
    return values[jnp.argmax(values.real)]


def roots(config: Config, method: Callable) -> dict:
    """Largest relative distance of the rightmost root from the root nearest in 40 digits."""
    mp.mp.dps = 40
    rng = np.random.default_rng(config.seed)
    worst = {}
    for stages in config.stages:
        root = jax.jit(lambda *p, stages=stages: method(system(p, stages)))
        errors = []
        for _ in range(config.roots):
            parameters = (*10 ** rng.uniform(-1, 1, 3), 10 ** rng.uniform(-3, 3))
            found = mp.mpmathify(complex(root(*parameters)))
            arrival, service, mean, sensitivity = map(mp.mpf, parameters)
            exact = found
            for _ in range(6):
                passed = 1 + exact * mean / stages
                pull = arrival * sensitivity * passed**-stages
                exact -= (exact + service + pull) / (1 - pull * mean / passed)
            errors.append(float(abs(exact - found) / abs(exact)))
        worst[stages] = max(errors)
    return worst


def single_precision_roots(config: Config) -> dict:
    """99 % quantile of the relative distance between the roots in float32 and in float64."""
    rng = np.random.default_rng(config.seed)
    quantile = {}
    for stages in config.stages:
        root = jax.jit(
            jax.vmap(lambda *p, stages=stages: lb.stability.rightmost_root(system(p, stages)))
        )
        count = config.single_precision_roots
        double = [*10 ** rng.uniform(-1, 1, (3, count)), 10 ** rng.uniform(-3, 3, count)]
        single = [values.astype(np.float32) for values in double]
        exact = np.asarray(root(*(values.astype(float) for values in single)))
        quantile[stages] = np.quantile(abs(np.asarray(root(*single)) - exact) / abs(exact), 0.99)
    return quantile


def residuals(config: Config) -> dict:
    """Largest error of the residual of (17), relative to its terms, against 40 digits."""
    mp.mp.dps = 40
    rng = np.random.default_rng(config.seed)
    worst = {}
    for stages in config.stages:
        residual = jax.jit(
            lambda root, *p, stages=stages: lb.stability.characteristic_residual(
                system(p, stages), root
            )
        )
        errors = []
        for _ in range(config.residuals):
            parameters = (*10 ** rng.uniform(-2, 2, 3), 10 ** rng.uniform(-3, 3))
            root = complex(*rng.normal(size=2)) * 10 ** rng.uniform(-2, 1) / parameters[2]
            arrival, service, mean, sensitivity = map(mp.mpf, parameters)
            r = mp.mpmathify(root)
            pull = arrival * sensitivity * mp.exp(-stages * mp.log(1 + r * mean / stages))
            size = abs(r) + service + abs(pull) * (1 + abs(r) * mean)
            error = mp.mpmathify(complex(residual(root, *parameters))) - (r + service + pull)
            errors.append(float(abs(error) / size))
        worst[stages] = max(errors)
    return worst


def trajectories(config: Config, dtype: type) -> dict:
    """Largest error of `fluid.solve` over [0, 20], relative to the largest value."""
    rng = np.random.default_rng(config.seed)
    times = np.linspace(0, 20, 201)
    start = np.array([0.0, 1.0], dtype)
    worst = {}
    for stages in config.trajectory_stages:
        solve = jax.jit(
            lambda *p, stages=stages: (
                lb.fluid.solve(system(p, stages), times.astype(dtype), start).jobs
            )
        )
        errors = []
        for _ in range(config.trajectories):
            parameters = rng.uniform([1, 0.5, 0.2, 0.1], [20, 2, 5, 5]).astype(dtype)
            exact = dormand_prince(parameters.astype(float), stages, times)
            errors.append(abs(np.asarray(solve(*parameters)) - exact).max() / exact.max())
        worst[stages] = max(errors)
    return worst


def dormand_prince(parameters, stages: int, times) -> np.ndarray:
    """The fluid limit by hand, by Dormand-Prince 8(5,3) at 1e-12."""
    arrival, service, mean, sensitivity = parameters
    gamma = stages / mean

    def drift(_, flat):
        jobs = flat.reshape(2, stages + 1)
        queue = jobs[:, -1]
        share = 1 / (1 + np.exp(sensitivity * (queue - queue[::-1])))
        moves = gamma * jobs[:, :-1]
        inflow = np.column_stack([2 * arrival * share, moves])
        return (inflow - np.column_stack([moves, service * queue])).ravel()

    start = np.zeros((2, stages + 1))
    start[1, -1] = 1
    span = (0.0, times[-1])
    solution = solve_ivp(drift, span, start.ravel(), "DOP853", times, rtol=1e-12, atol=1e-13)
    return solution.y.T.reshape(-1, 2, stages + 1)


def run(config: Config) -> dict:
    """All tables, by number of stages."""
    return {
        "erlang_root_float64_max": roots(config, fixed_cost),
        "dense_root_float64_max": roots(config, dense),
        "erlang_root_float32_99_percent": single_precision_roots(config),
        "characteristic_residual_float64_max": residuals(config),
        "fluid_solve_float64_max": trajectories(config, np.float64),
        "fluid_solve_float32_max": trajectories(config, np.float32),
    }


if __name__ == "__main__":
    _record.main(run, Config(), RESULT)
