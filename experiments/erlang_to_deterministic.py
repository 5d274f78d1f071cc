"""How fast does an Erlang action delay become the deterministic one?

Figure 3's parameters and start, more and more stages: largest difference of the imbalance x from
that of the deterministic delay, while the first jobs arrive and in all of [0, 20]; and how far the
limit cycles are apart. Rates are slopes over the last doubling.

Found: slowly. The front of the first jobs, of width D / sqrt(L), leaves an error of order
L^(-1/2): 0.26 jobs at L = 400. Later it is of order 1 / L, and until L is about 2000 larger, by the
phase that is lost in some periods: 0.57 of 18 jobs at L = 400. Period and amplitude of the cycle
converge as 1 / L.

Run:     python -m experiments.erlang_to_deterministic
Writes:  experiments/results/erlang_to_deterministic.json and .png
Cost:    half a minute on one core.
"""

from dataclasses import dataclass
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np

import jaxlb as lb
from jaxlb import plot
from jaxlb.plot.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, legend_below

from . import _record

RESULT = Path(__file__).parent / "results" / "erlang_to_deterministic.json"


@dataclass(frozen=True)
class Config:
    """Figure 3, the numbers of stages, and where in time the differences are looked for."""

    arrival_rate: float = 15.0
    service_rate: float = 1.0
    action_delay: float = 1.0
    sensitivity: float = 1.0
    stages: tuple[int, ...] = (5, 10, 25, 50, 100, 200, 400, 800)
    horizon: float = 20.0
    early: float = 1.9
    points: int = 4001
    shown: tuple[int, ...] = (10, 100, 400)


def system(config: Config, delay: lb.AbstractDelay) -> lb.System:
    """Figure 3's, with another delay."""
    rule = lb.Logit(config.sensitivity)
    return lb.System(config.arrival_rate, config.service_rate, delay, rule)


def imbalance(config: Config, delay: lb.AbstractDelay) -> np.ndarray:
    """x over time."""
    times = np.linspace(0, config.horizon, config.points)
    # Half a million steps suffice for 800 stages.
    solution = lb.fluid.solve_imbalance(system(config, delay), times, -1.0, max_steps=2**19)
    assert solution.ok
    return np.asarray(solution.queue)


def fixed_imbalance(config: Config) -> np.ndarray:
    """x over time for the deterministic delay."""
    times = np.linspace(0, config.horizon, config.points)
    whole = system(config, lb.Deterministic(config.action_delay))
    return np.asarray(lb.fluid.solve_imbalance(whole, times, -1.0).queue)


def run(config: Config) -> dict:
    """A row for each number of stages, then rates; `early` is before the second lag."""
    limit = fixed_imbalance(config)
    fixed = lb.fluid.limit_cycle.find(system(config, lb.Deterministic(config.action_delay)))
    times = np.linspace(0, config.horizon, config.points)
    rows = {}
    for stages in config.stages:
        delay = lb.Erlang(config.action_delay, stages)
        difference = np.abs(imbalance(config, delay) - limit)
        cycle = lb.fluid.limit_cycle.find(system(config, delay))
        rows[str(stages)] = {
            "early sup error": float(difference[times <= config.early].max()),
            "sup error": float(difference.max()),
            "cycle amplitude error": float(abs(cycle.amplitude - fixed.amplitude)),
            "cycle period error": float(abs(cycle.period - fixed.period)),
        }
    last, half = (rows[str(stages)] for stages in (config.stages[-1], config.stages[-2]))
    ratio = np.log(config.stages[-1] / config.stages[-2])
    rates = {name: float(np.log(half[name] / last[name]) / ratio) for name in last}
    return {**rows, "deterministic sup": float(np.abs(limit).max()), "rates in 1 / L": rates}


def draw(config: Config, results: dict) -> None:
    """Some trajectories, and the differences against the number of stages."""
    times = np.linspace(0, config.horizon, config.points)
    colours = BLUE, ORANGE, GREEN, PURPLE
    with plt.rc_context(plot.STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.6), layout="constrained")
        for stages, colour in zip(config.shown, colours, strict=False):
            x = imbalance(config, lb.Erlang(config.action_delay, stages))
            left.plot(times, x, color=colour, label=f"L = {stages}")
        left.plot(times, fixed_imbalance(config), color=BLACK, label="deterministic")
        left.set(xlabel="time (s)", ylabel="difference of jobs, $q_1 - q_2$")
        left.set(xlim=(0, config.horizon / 2))
        for (name, rate), colour in zip(results["rates in 1 / L"].items(), colours, strict=True):
            errors = [results[str(stages)][name] for stages in config.stages]
            right.loglog(
                config.stages, errors, "o-", color=colour, markersize=4, label=f"{name}: {rate:.2f}"
            )
        right.set(xlabel="stages L", ylabel="off the deterministic delay")
        right.set_title("Last slope in 1 / L: 1/2 for the first jobs, then 1")
        for ax in (left, right):
            legend_below(ax)
    plot.save(figure, RESULT.with_suffix(".png"))


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    settings = Config()
    draw(settings, _record.main(run, settings, RESULT))
