"""`jaxlb tune`: advice on a dispatcher, in words, as JSON, as a picture."""

import json
import math
from pathlib import Path
from typing import Any

import click
import jax
import numpy as np

from .. import Logit, System, design
from ..model import AbstractDelay
from .measured import Measured, read_delays
from .options import (
    Number,
    delay_of,
    dispatcher_options,
    option,
    output_options,
    require_picture,
)
from .stability import described

COLUMNS = (
    ("", 26, "<"),
    ("sensitivity", 12, ">"),
    ("temperature", 12, ">"),
    ("time const.", 12, ">"),
    ("settles", 10, ">"),
    ("fluctuates", 11, ">"),
    ("gain", 8, ">"),
    ("delay", 11, ">"),
)
UNITS = ("", "per job", "jobs", "s", "s", "of random", "margin", "margin, s")


@click.command("tune")
@dispatcher_options(mean_required=False)
@option(
    "--delays",
    click.Path(path_type=Path, exists=True, dir_okay=False),
    "Instead of these: a CSV file of measured delays, s, fitted by their mean and cv.",
    required=False,
    metavar="FILE",
)
@option(
    "--column",
    click.STRING,
    "Of that file: a name in its first row, or a number from 1.",
    required=False,
)
@option(
    "--sensitivity",
    Number(zero=True),
    "The present one, per job, if there is one.",
    required=False,
)
@option(
    "--temperature",
    Number(),
    "Instead of it, of a softmax over jobs: 1 / sensitivity, in jobs.",
    required=False,
)
@option(
    "--tolerance",
    Number(1e-6, 0.5),
    "Of the settling time: what is left of an imbalance.",
    default=0.05,
)
@output_options
def command(**given: Any) -> None:
    """Which sensitivity is safe for this delay, which is best? Does counting jobs in transit help?

    Two servers, alike, and rates as they are: arrivals per second at each. The dispatcher sends
    each job to a server with probability proportional to exp(-sensitivity * jobs there).

    \b
    Prints, for your setting, random routing, and the best sensitivity by each of three criteria:
            - the time constant with which an imbalance dies out;
            - the time after which it stays within a twentieth;
            - how much it fluctuates at rest, as a part of what random routing leaves;
            - by how much sensitivity or load, and delay, may grow before balance is lost;
            and the same where jobs in transit are counted: all alike, or with the best weights.

    Takes some 40 seconds.

    \b
    Examples:
      jaxlb tune --arrival-rate 1500 --service-rate 1 --delay-mean 1 --stages 2 --temperature 100
      jaxlb tune --arrival-rate 40 --service-rate 0.5 --delays latency.csv --column startup_s \\
            --sensitivity 0.02 --plot tuning.png
    """
    if given["picture"] is not None:
        require_picture(given["picture"])
    # Before the first number is made.
    jax.config.update("jax_enable_x64", True)
    theta = _sensitivity(given)
    delay, measured = _delay(given)
    # Each program runs once: most of the time would go into making it fast.
    jax.config.update("jax_disable_most_optimizations", True)
    system = System(given["arrival_rate"], given["service_rate"], delay, Logit(theta))
    advice = design.advise(system, tolerance=given["tolerance"], progress=True)
    if given["as_json"]:
        click.echo(json.dumps(_as_json(advice, measured), indent=2, allow_nan=False))
    else:
        click.echo("\n".join(_said(advice, measured, given["tolerance"])))
    if given["picture"] is not None:
        from .. import plot

        plot.save(plot.tuning(advice), given["picture"])
        click.echo(f"Picture: {given['picture']}", err=given["as_json"])


def _sensitivity(given: dict[str, Any]) -> float:
    """The present one, zero for none."""
    theta, temperature = given["sensitivity"], given["temperature"]
    if theta is not None and temperature is not None:
        raise click.UsageError(
            f"`--temperature` must not be given with `--sensitivity`, got {temperature:g} and "
            f"{theta:g}."
        )
    return (theta or 0.0) if temperature is None else 1 / temperature


def _delay(given: dict[str, Any]) -> tuple[AbstractDelay, Measured | None]:
    """The delay, and what it was fitted to."""
    names = {"--delay-mean": "delay_mean", "--stages": "stages", "--delay-cv": "delay_cv"}
    if given["delays"] is not None:
        for name, key in names.items():
            if given[key] is not None:
                raise click.UsageError(
                    f"`{name}` must not be given with `--delays`, got {given[key]:g}."
                )
        measured = read_delays(given["delays"], given["column"])
        return delay_of(measured.mean, None, measured.cv), measured
    if given["column"] is not None:
        raise click.UsageError(f"`--column` must be of `--delays`, got {given['column']!r} alone.")
    if given["delay_mean"] is None:
        raise click.UsageError("`--delay-mean` or `--delays` must be given, got neither.")
    return delay_of(given["delay_mean"], given["stages"], given["delay_cv"]), None


def _as_json(advice: design.Advice, measured: Measured | None) -> dict[str, Any]:
    """Numbers in s, 1/s and jobs; infinity is null."""

    def plain(value: Any) -> Any:
        if isinstance(value, str | bool):
            return value
        return float(value) if math.isfinite(value) else None

    def of(setting: design.Setting | None) -> Any:
        if setting is None:
            return None
        numbers = {key: plain(value) for key, value in setting._asdict().items() if key != "system"}
        weights = getattr(setting.system.routing, "weights", None)
        return numbers | {"weights": None if weights is None else np.asarray(weights).tolist()}

    delay = advice.system.delay
    names = "present", "random", "fastest", "soonest", "steadiest", "counting", "weighted"
    return {
        "delay": {
            "law": described(delay),
            "mean": float(delay.mean),
            "cv": math.sqrt(delay.squared_cv),
            "fitted_to": None if measured is None else measured._asdict(),
        },
        "critical_sensitivity": plain(advice.critical),
        **{name: of(getattr(advice, name)) for name in names},
        "counting_fixes_it": advice.counting_fixes_it,
    }


def _said(advice: design.Advice, measured: Measured | None, tolerance: float) -> list[str]:
    """The advice in words and a table."""
    fitted = ""
    if measured is not None:
        fitted = (
            f", fitted by two moments to {measured.number} values of column {measured.column!r} "
            f"(mean {measured.mean:.4g} s, cv {measured.cv:.3g})"
        )
    lines = [f"{described(advice.system.delay)}{fitted}."]
    if math.isinf(advice.critical):
        lines.append("Safe: every sensitivity.")
    else:
        lines.append(
            f"Safe: sensitivity below {advice.critical:.4g} per job, temperature above "
            f"{1 / advice.critical:.4g} jobs; beyond, oscillations grow."
        )
    if advice.present is not None and math.isinf(advice.present.decay_time):
        lines.append(f"Yours, {advice.present.sensitivity:.4g} per job, is UNSTABLE.")
    lines += ["", _row([name for name, *_ in COLUMNS]), _row(list(UNITS))]
    lines += [_row(_cells(setting)) for setting in advice.settings]
    lines.append("")
    if not all(setting.trusted for setting in advice.settings):
        lines.append("* Not to be trusted there: the rule saturates; it is more than that.")
    return [*lines, *_words(advice, tolerance)]


def _cells(setting: design.Setting) -> list[str]:
    theta = setting.sensitivity
    star = "" if setting.trusted else " *"
    return [
        setting.name,
        f"{theta:.4g}",
        "infinite" if theta == 0 else f"{1 / theta:.4g}",
        _time(setting.decay_time),
        _time(setting.settling_time),
        f"{setting.relative:.3g}{star}",
        _time(setting.gain_margin, "any"),
        _time(setting.delay_margin, "any"),
    ]


def _time(value: float, infinite: str = "never") -> str:
    return f"{value:.3g}" if math.isfinite(value) else infinite


def _row(cells: list[str]) -> str:
    parts = (f"{cell:{way}{width}}" for cell, (_, width, way) in zip(cells, COLUMNS, strict=True))
    return "".join(parts).rstrip()


def _words(advice: design.Advice, tolerance: float) -> list[str]:
    counting, best = advice.counting, advice.steadiest
    verdict = "fixes it" if advice.counting_fixes_it else "does not help much here"
    lines = [
        f"Counting the jobs in transit {verdict}: with weight 1 balance is stable for every "
        f"sensitivity, and at {counting.sensitivity:.4g} the imbalance fluctuates "
        f"{counting.relative:.3g} times as much as under random routing, against "
        f"{best.relative:.3g} at best without."
    ]
    if advice.stand_in:
        lines.append("(With 50 exponential stages in place of the delay.)")
    if advice.present is not None and best.relative > 0:
        ratio = advice.present.deviation / counting.deviation
        if ratio > 1.05:
            lines.append(f"That is {ratio:.3g} times less than your setting does now.")
    lines.append(
        "Which is best: the fastest decay if imbalances are small and rare; settling soonest if "
        f"what matters is to be within {tolerance:.0%} after a shock; the least variance for the "
        "run of days."
    )
    return lines
