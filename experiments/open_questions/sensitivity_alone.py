"""Question 1 with the sensitivity alone: three criteria, three optima."""

from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from jaxlb import design, plot
from jaxlb.paper.claims import Claim

from .case import STAGES, Config, of_gain, paper

FREE = {"routing.sensitivity": (0.0, 1000 / 15)}
COLOURS: dict[int, str] = dict(
    zip(STAGES, (plot.BLACK, plot.BLUE, plot.GREEN, plot.ORANGE, plot.PURPLE), strict=True)
)
GAINS = np.geomspace(0.01, 30.0, 160)


class Optima(NamedTuple):
    """Gains lambda theta that are best by each criterion, and what each criterion is there."""

    stages: int
    rate_gain: float
    rate: float
    time_gain: float
    time: float
    variance_gain: float
    variance: float
    rate_at_least_variance: float


def optima(stages: int) -> Optima:
    """By `design.tune`; variances over that without feedback."""
    system = paper(stages, of_gain(0.3))
    rate = design.tune(system, design.decay_rate, FREE, method="scan")
    time = design.tune(system, design.settling_time, FREE)
    variance = design.tune(system, design.linear_noise_variance, FREE)
    gains = [
        15 * float(found.parameters["routing.sensitivity"]) for found in (rate, time, variance)
    ]
    return Optima(
        stages,
        gains[0],
        rate.value,
        gains[1],
        time.value,
        gains[2],
        variance.value / 30,
        float(design.decay_rate(variance.system)),
    )


def statements(_config: Config, found: list[Optima]) -> list[Claim]:
    """Of the table."""
    several = [row for row in found if row.stages > 1]
    spread = [max(row[1::2][:3]) / min(row[1::2][:3]) for row in several]
    rows = []
    for row in several:
        stage = float(row.stages)
        best = ((stage - 1) / (stage + 1)) ** (stage + 1)
        rate = 2 * stage / (stage + 1)
        rows.append(
            Claim(
                "1 theta",
                f"With {row.stages} stages an imbalance decays fastest at the double root.",
                f"gain {row.rate_gain:.6g}, rate {row.rate:.6g} 1/s",
                f"closed form {best:.6g}, {rate:.6g}",
                abs(row.rate_gain / best - 1) < 1e-6 and abs(row.rate / rate - 1) < 1e-6,
                {"gain": row.rate_gain, "rate": row.rate},
            )
        )
    rows.append(
        Claim(
            "1 theta",
            "With theta alone the three criteria disagree: by a factor of 3.9 or more in theta.",
            "largest over least best theta: " + ", ".join(f"{ratio:.3g}" for ratio in spread),
            "above 3.9 for 2, 5, 10 and 50 stages",
            min(spread) > 3.9,
            {f"stages {row.stages}": ratio for row, ratio in zip(several, spread, strict=True)},
        )
    )
    slow = {row.stages: row.rate_at_least_variance for row in several}
    rows.append(
        Claim(
            "1 theta",
            "Of least variance, an imbalance decays slower than with random routing (rate 1) with "
            "2, 5 and 10 stages; with 50 a little faster.",
            ", ".join(f"{stages}: {rate:.3f}" for stages, rate in slow.items()),
            "below 1 up to 10 stages, above at 50",
            all((rate < 1) == (stages < 50) for stages, rate in slow.items()),
            {f"stages {stages}": rate for stages, rate in slow.items()},
        )
    )
    return rows


def picture(found: list[Optima]) -> Figure:
    """The three criteria over the gain, with the best of each marked."""
    names = (
        ("decay rate (1/s)", design.decay_rate, "rate"),
        ("settling time (s)", design.settling_time, "time"),
        ("variance over that\nof random routing", design.linear_noise_variance, "variance"),
    )
    with matplotlib.rc_context(plot.STYLE):
        figure = Figure(figsize=(5.6, 6.6), layout="constrained")
        panels = figure.subplots(3, 1, sharex=True)
        for ax, (label, criterion, name) in zip(panels, names, strict=True):
            for row in found:
                values = np.array([_value(criterion, row.stages, gain) for gain in GAINS])
                unit = 30 if name == "variance" else 1
                colour = COLOURS[row.stages]
                ax.plot(GAINS, values / unit, color=colour, label=_stages(row.stages))
                gain = getattr(row, f"{name}_gain")
                if GAINS[0] < gain < GAINS[-1]:
                    ax.plot(gain, getattr(row, name), "o", color=colour)
            ax.set_xscale("log")
            ax.set_ylabel(label)
            ax.set_ylim(0, {"rate": 2.2, "time": 6.0, "variance": 2.0}[name])
        panels[-1].set_xlabel("gain λθ (1/s)")
        figure.legend(*panels[-1].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


def _value(criterion: Any, stages: int, gain: float) -> float:
    found = criterion(paper(stages, of_gain(float(gain))))
    value = float(getattr(found, "value", found))
    return value if np.isfinite(value) else np.nan


def _stages(number: int) -> str:
    return f"{number} stage" + ("s" if number > 1 else "")
