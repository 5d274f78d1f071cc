"""How large is the oscillation past the Hopf point, and how does it end as the rule sharpens?

Limit cycles of Figure 3's system against the sensitivity, from the Hopf point to 1000 per job, for
2, 5 and 50 stages and a deterministic delay of the same mean; the relay limit is that of infinite
sensitivity. With a deterministic delay 512 harmonics resolve the corners up to 300 per job.

Found: the Hopf point is supercritical for every delay, the amplitude rises within a factor of three
in theta to nearly all of its limit, and the period stays within 5 % of that at birth. A more
regular delay oscillates earlier and further: at theta = 1 by 3.6, 10.7, 16.6 and 18.1 jobs.

Run:     python -m experiments.bifurcation
Writes:  experiments/results/bifurcation.json and .png
Cost:    two minutes on one core.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxlb as lb
from jaxlb import plot
from jaxlb.fluid import limit_cycle

from . import _record

RESULT = Path(__file__).parent / "results" / "bifurcation.json"


@dataclass(frozen=True)
class Config:
    """Figure 3's numbers, the delays, and the sensitivities, closer near each Hopf point."""

    arrival_rate: float = 15.0
    service_rate: float = 1.0
    action_delay: float = 1.0
    stages: tuple[float, ...] = (2, 5, 50, math.inf)
    lowest: float = 0.1
    highest: float = 1000.0
    points: int = 60
    sharp_points: int = 12


def system(config: Config, stages: float, sensitivity) -> lb.System:
    """Figure 3's system, with another delay and sensitivity."""
    mean = config.action_delay
    delay = lb.Deterministic(mean) if math.isinf(stages) else lb.Erlang(mean, int(stages))
    return lb.System(config.arrival_rate, config.service_rate, delay, lb.Logit(sensitivity))


def branch(config: Config, stages: float) -> limit_cycle.Branch:
    """Cycles along the sensitivity; the amplitude grows like a root of the distance from birth."""
    born = float(lb.stability.critical_sensitivity(system(config, stages, 1.0)))
    # The rise ends within ten times the critical sensitivity.
    rise = born * (1 + np.geomspace(1e-3, 9, config.points))
    beyond = np.geomspace(rise[-1], config.highest, config.sharp_points + 1)[1:]
    values = jnp.concatenate([jnp.array([config.lowest]), rise, beyond])
    return limit_cycle.continuation(lambda theta: system(config, stages, theta), values)


def run(config: Config) -> dict:
    """The branch of each delay, its relay limit, and what the Hopf point is like."""
    rows = {}
    for stages in config.stages:
        found, whole = branch(config, stages), system(config, stages, 1.0)
        form, limit = limit_cycle.hopf_normal_form(whole), limit_cycle.relay_limit(whole)
        cycle = limit_cycle.find(whole)
        there = found.valid
        rows[f"L = {stages:g}"] = {
            "critical sensitivity": float(form.sensitivity),
            "first Lyapunov coefficient, real": float(form.first_lyapunov_coefficient.real),
            "amplitude at theta = 1": float(cycle.amplitude),
            "period at theta = 1": float(cycle.period),
            "relay amplitude": float(limit.amplitude),
            "relay period": float(limit.period),
            "sensitivity": found.values[there].tolist(),
            "amplitude": found.amplitude[there].tolist(),
            "period": found.period[there].tolist(),
            "largest multiplier": np.abs(found.multiplier[there]).tolist(),
        }
    return rows


def draw(config: Config, results: dict) -> None:
    """Amplitude and period, from the results."""
    branches, limits = {}, {}
    for key, row in results.items():
        name, values = key.replace("inf", "∞"), np.array(row["sensitivity"])
        count = len(values)
        parts = (np.array(row[part]) for part in ("amplitude", "period", "largest multiplier"))
        branches[name] = limit_cycle.Branch(
            values, *parts, valid=np.ones(count, bool), is_hopf=np.arange(count) == 0
        )
        limits[name] = limit_cycle.RelayCycle(
            exists=jnp.ones((), bool),
            amplitude=jnp.asarray(row["relay amplitude"]),
            period=jnp.asarray(row["relay period"]),
            valid=jnp.ones((), bool),
        )
    with plt.rc_context(plot.STYLE):
        figure, axes = plt.subplots(2, 1, figsize=(5.6, 6), sharex=True, layout="constrained")
        for ax, quantity in zip(axes, ("amplitude", "period"), strict=True):
            plot.bifurcation_diagram(branches, limits, quantity, ax=ax)
        axes[0].get_legend().remove()
        axes[0].set(xlabel="", xlim=(config.lowest, config.highest))
        axes[0].set_title("Cycles past the Hopf point (squares); dotted: infinite sensitivity")
    plot.save(figure, RESULT.with_suffix(".png"))


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    settings = Config()
    draw(settings, _record.main(run, settings, RESULT))
