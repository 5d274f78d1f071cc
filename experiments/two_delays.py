"""Are delayed action and delayed information the same nonlinear system? Yes, in other variables.

A trajectory of Figure 3 with an Erlang action delay, and one of the same system with an Erlang
information delay from the state that `lb.fluid.information_delay.equivalent` makes of its start:
how far the second is from the image of the first, and how far servers are apart in either.

Found: they are one to 1e-11 of the largest queue, for 2, 3 and 4 servers and 1 to 5 stages. What
is seen under information delay is the queue under action delay; the queue itself swings more, with
two stages 11.37 instead of 3.64 jobs.

Run:     python -m experiments.two_delays
Writes:  experiments/results/two_delays.json and .png
Cost:    half a minute on one core.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np

import jaxlb as lb
from jaxlb import plot
from jaxlb.plot.style import BLACK, BLUE, ORANGE

from . import _record

RESULT = Path(__file__).parent / "results" / "two_delays.json"


@dataclass(frozen=True)
class Config:
    """Figure 3's numbers with several numbers of stages and of servers."""

    arrival_rate: float = 15.0
    service_rate: float = 1.0
    delay: float = 1.0
    sensitivity: float = 1.0
    stages: tuple[int, ...] = (1, 2, 3, 4, 5)
    servers: tuple[int, ...] = (2, 3, 4)
    shown: tuple[int, int] = (2, 2)
    horizon: float = 20.0
    points: int = 2001
    tolerance: float = 1e-12


def trajectories(config: Config, stages: int, servers: int) -> dict[str, np.ndarray]:
    """Queues under action delay and their image; queues under information delay, and as seen."""
    delay, rule = lb.Erlang(config.delay, stages), lb.Logit(config.sensitivity)
    system = lb.System(config.arrival_rate, config.service_rate, delay, rule, servers)
    times = np.linspace(0, config.horizon, config.points)
    options: Any = {"rtol": config.tolerance, "atol": config.tolerance, "max_steps": 2**18}

    def image(jobs):
        return lb.fluid.information_delay.equivalent(system, jobs)

    action = lb.fluid.solve(system, times, **options)
    assert action.ok
    start = image(action.jobs[0])
    information = lb.fluid.information_delay.solve(system, times, *start, **options)
    assert information.ok
    return {
        "times": times,
        "action": np.asarray(action.queue),
        "image": np.asarray(jax.vmap(image)(action.jobs)[0]),
        "information": np.asarray(information.queue),
        "seen": np.asarray(information.observed),
    }


def run(config: Config) -> dict:
    """For each number of servers and stages: differences relative to the largest queue, and how
    large the differences between the first two servers are in the last quarter of the time."""
    rows = {}
    for servers in config.servers:
        for stages in config.stages:
            found = trajectories(config, stages, servers)
            late = found["times"] > 0.75 * config.horizon
            size = np.abs(found["image"]).max()
            apart = {
                name: float(np.abs(found[name][late, 0] - found[name][late, 1]).max())
                for name in ("action", "information", "seen")
            }
            rows[f"N = {servers}, L = {stages}"] = {
                "queue off its image": float(
                    np.abs(found["information"] - found["image"]).max() / size
                ),
                "seen off the queue under action delay": float(
                    np.abs(found["seen"] - found["action"]).max() / size
                ),
                **{f"late imbalance, {name}": value for name, value in apart.items()},
            }
    return rows


def draw(config: Config) -> None:
    """The imbalance under either delay, and the image of the first upon the second."""
    found = trajectories(config, *config.shown)
    apart = {name: value[:, 0] - value[:, 1] for name, value in found.items() if value.ndim == 2}
    action = {"color": BLUE, "label": "action delay: $q$"}
    late = {"color": ORANGE, "label": "information delay: $q$"}
    with plt.rc_context(plot.STYLE):
        figure, axes = plt.subplots(2, 1, figsize=(6.4, 5.6), sharex=True, layout="constrained")

        def draw(ax, name, **style):
            ax.plot(found["times"], apart[name], **style)

        draw(axes[0], "action", **action)
        draw(axes[0], "information", **late)
        axes[0].set_title("One law of delay, two systems: the same period, other amplitudes")
        draw(axes[1], "information", **late, linewidth=4, alpha=0.4)
        draw(axes[1], "image", color=BLACK, dashes=(4, 2), linewidth=1, label="its image of $q$")
        draw(axes[1], "action", **action, linewidth=4, alpha=0.4)
        draw(axes[1], "seen", color=BLACK, dashes=(1, 1.5), linewidth=1.2, label="what is seen")
        axes[1].set_title("In other variables one: late queue and image, queue and what is seen")
        for ax in axes:
            ax.set_ylabel("difference of jobs, $q_1 - q_2$")
            # Room for the legend above the curves.
            ax.margins(y=0.2)
            ax.legend(loc="upper left", ncols=4)
        axes[1].set(xlabel="time (s)", xlim=(0, config.horizon))
    plot.save(figure, RESULT.with_suffix(".png"))


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    settings = Config()
    _record.main(run, settings, RESULT)
    draw(settings)
