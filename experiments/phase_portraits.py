"""What does the oscillation look like in the plane, and how does it pass through the phases?

Figure 3's system below and above the Hopf point, with two stages and with a deterministic delay;
and the waveforms of the cycle, as in Figure 4.

Found: the cycle is nearly an ellipse with two stages; with a deterministic delay all jobs go to one
server for most of a delay, and it has four corners. On the cycle the peaks pass from phase to phase
with lags of .269 and .427 s, not with those of the linear system (.338 and .436).

Run:     python -m experiments.phase_portraits
Writes:  experiments/results/phase_portraits.json and .png
Cost:    half a minute on one core.
"""

from dataclasses import dataclass
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np

import jaxlb as lb
from jaxlb import plot
from jaxlb.fluid import limit_cycle

from . import _record

RESULT = Path(__file__).parent / "results" / "phase_portraits.json"


@dataclass(frozen=True)
class Config:
    """Figure 3's numbers, and a sensitivity below the critical one, 0.6."""

    arrival_rate: float = 15.0
    service_rate: float = 1.0
    action_delay: float = 1.0
    sensitivity: float = 1.0
    low_sensitivity: float = 0.5
    points: int = 20_000


def system(config: Config, delay: lb.AbstractDelay, sensitivity: float) -> lb.System:
    """Figure 3's system, with another delay and sensitivity."""
    return lb.System(config.arrival_rate, config.service_rate, delay, lb.Logit(sensitivity))


def two_stages(config: Config) -> lb.System:
    """Figure 3's system."""
    return system(config, lb.Erlang(config.action_delay, 2), config.sensitivity)


def run(config: Config) -> dict:
    """Lags between the peaks of the phases on the cycle, and those of the linear system, s."""
    whole = two_stages(config)
    cycle = limit_cycle.find(whole)
    period = float(cycle.period)
    times = period * np.arange(config.points) / config.points
    wave = np.asarray(cycle.imbalance(times))
    first, second, service = (times[np.argmax(wave[:, mode])] for mode in (1, 2, 0))
    frequency, rate = 2 * np.pi / period, 2 / config.action_delay
    return {
        "period": period,
        "lags": [float((second - first) % period), float((service - second) % period)],
        "linear lags": [
            float(np.arctan(frequency / rate) / frequency),
            float(np.arctan(frequency / config.service_rate) / frequency),
        ],
    }


def draw(config: Config) -> None:
    """Three portraits and the waveforms."""
    with plt.rc_context(plot.STYLE):
        figure, axes = plt.subplots(2, 2, figsize=(8.4, 7.4), layout="constrained")
    fixed = lb.Deterministic(config.action_delay)
    below = system(config, lb.Erlang(config.action_delay, 2), config.low_sensitivity)
    portraits = {
        f"Two stages, θ = {config.low_sensitivity:g}: balance is stable": below,
        f"Two stages, θ = {config.sensitivity:g}": two_stages(config),
        f"Deterministic delay, θ = {config.sensitivity:g}": system(
            config, fixed, config.sensitivity
        ),
    }
    with plt.rc_context(plot.STYLE):
        for ax, (title, whole) in zip(axes.flat, portraits.items(), strict=False):
            plot.phase_portrait(whole, ax=ax)
            ax.set_title(title)
        whole = two_stages(config)
        plot.waveforms(whole, limit_cycle.find(whole), ax=axes[1, 1])
        axes[1, 1].set_title(f"Through the phases, two stages, θ = {config.sensitivity:g}")
    plot.save(figure, RESULT.with_suffix(".png"))


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    settings = Config()
    _record.main(run, settings, RESULT)
    draw(settings)
