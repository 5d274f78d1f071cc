"""`jaxlb stability`: a verdict in words, all numbers as JSON, a picture."""

import json
import math
from pathlib import Path
from typing import Any

import click
import jax
import numpy as np

from .. import Deterministic, Erlang, Logit, MixedErlang, System, stability
from ..model import AbstractDelay
from ..stability.summary import largest_sensitivity
from .options import (
    Number,
    delay_of,
    dispatcher_options,
    option,
    output_options,
    require_picture,
)

# A sensitivity this close to the critical one, relatively, is on the boundary.
ON_BOUNDARY = 1e-12


@click.command("stability")
@dispatcher_options(mean_required=True)
@option("--sensitivity", Number(zero=True), "Of logit routing, per job; 0 routes at random.")
@output_options
def command(
    arrival_rate: float,
    service_rate: float,
    delay_mean: float,
    stages: float | None,
    delay_cv: float | None,
    sensitivity: float,
    as_json: bool,
    picture: Path | None,
) -> None:
    """Is balance stable? What would make it so, and what is best?

    Servers are alike, two or more. A small imbalance between them dies out if balance is stable;
    else it grows, oscillating, until jobs pile up at one server after the other.

    \b
    Prints: - whether it is stable, how fast an imbalance moves, and its period;
            - the critical sensitivity, and the one that is safe for every mean delay;
            - the mean delays that are unstable at your sensitivity;
            - the sensitivity of the fastest decay.

    --json gives the same and more, in s, 1/s, rad/s and per job: see the help of
    jaxlb.stability.summary. Infinity is null.

    --plot shows the stability chart, the roots, and the decay against the sensitivity.

    Takes some seconds, with a --delay-cv that no number of stages has 20.

    \b
    Examples:
      jaxlb stability --arrival-rate 15 --service-rate 1 --delay-mean 1 --stages 2 --sensitivity 1
      jaxlb stability --arrival-rate 15 --service-rate 1 --delay-mean 1 --sensitivity 0.05 \\
            --delay-cv 0.6 --json --plot chart.pdf
    """
    if picture is not None:
        require_picture(picture)
    jax.config.update("jax_enable_x64", True)
    # Each program runs once: most of the time would go into making it fast.
    jax.config.update("jax_disable_most_optimizations", True)
    delay = delay_of(delay_mean, stages, delay_cv)
    system = System(arrival_rate, service_rate, delay, Logit(sensitivity))
    found = stability.summary(system)
    if np.isnan(jax.tree.leaves(found)).any():
        raise click.UsageError("the numbers given must be less extreme: what follows overflows.")
    if as_json:
        click.echo(json.dumps(_as_json(system, found), indent=2, allow_nan=False))
    else:
        given = stages is not None or delay_cv is not None
        click.echo("\n".join(_verdict(system, found, given)))
    if picture is not None:
        from .. import plot

        plot.save(plot.stability_overview(system), picture)
        click.echo(f"Picture: {picture}", err=as_json)


def _as_json(system: System, found: stability.Summary) -> dict[str, Any]:
    delay = system.delay
    given = {
        "arrival_rate": system.arrival_rate,
        "service_rate": system.service_rate,
        "delay": type(delay).__name__,
        "delay_mean": delay.mean,
        "delay_cv": np.sqrt(delay.squared_cv),
        "stages": delay.stages if isinstance(delay, Erlang) else None,
        "sensitivity": system.routing.sensitivity,  # pyright: ignore
    }
    return _plain({"system": given, **found._asdict()})


def _plain(value: Any) -> Any:
    """Dicts and Python numbers; infinity is `None`."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if value is None or isinstance(value, str):
        return value
    number = np.asarray(value).item()
    return number if math.isfinite(number) else None


def _verdict(system: System, found: stability.Summary, given: bool) -> list[str]:
    """The summary in words."""
    theta = f"sensitivity {system.routing.sensitivity:.4g} per job"  # pyright: ignore
    critical, safe = float(found.critical_sensitivity), float(found.safe_sensitivity)
    window = found.unstable_means
    lines = [described(system.delay) + ("" if given else ", as no variability was given") + "."]
    lines.append(_movement(system, found))
    if math.isinf(critical):
        lines.append("Stable for every sensitivity.")
    else:
        lines.append(
            f"Stable if the sensitivity is below {critical:.4g} per job; beyond it oscillations of "
            f"period {found.hopf_period:.4g} s grow."
        )
    if math.isfinite(safe):
        lines.append(f"Stable for every mean delay if the sensitivity is below {safe:.4g} per job.")
    if math.isinf(window.lower):
        lines.append(f"At {theta} stable for every mean delay.")
    elif math.isinf(window.upper):
        lines.append(f"At {theta} unstable for mean delays above {window.lower:.4g} s.")
    else:
        more = "" if window.single else ", and some longer ones"
        lines.append(
            f"At {theta} unstable for mean delays between {window.lower:.4g} s and "
            f"{window.upper:.4g} s{more}."
        )
    lines.append(_fastest(system, found.best_sensitivity))
    return lines


def described(delay: AbstractDelay) -> str:
    """The law in words."""
    kind = {
        Deterministic: "Constant delay",
        MixedErlang: "Delay of two Erlang laws mixed",
    }.get(type(delay), "Delay of two exponential laws mixed")
    if isinstance(delay, Erlang):
        kind = f"Erlang delay of {delay.stages} stages" if delay.stages > 1 else "Exponential delay"
    return f"{kind}, mean {delay.mean:.4g} s, cv {math.sqrt(delay.squared_cv):.4g}"


def _movement(system: System, found: stability.Summary) -> str:
    turns = float(found.frequency) > 0
    theta, critical = float(system.routing.sensitivity), float(found.critical_sensitivity)  # pyright: ignore
    period = f"oscillating with period {found.period:.4g} s" if turns else "without oscillating"
    if math.isclose(theta, critical, rel_tol=ON_BOUNDARY):
        return f"On the boundary: an imbalance neither dies out nor grows, {period}."
    if found.stable:
        time = f"{found.decay_time:.4g}"
        return f"Stable: an imbalance dies out with time constant {time} s, {period}."
    return f"Unstable: an imbalance grows e-fold every {1 / found.abscissa:.4g} s, {period}."


def _fastest(system: System, best: stability.Optimum) -> str:
    theta, time = f"{best.value:.4g} per job", f"time constant {-1 / best.abscissa:.4g} s"
    delay = system.delay
    if isinstance(delay, Erlang) and delay.stages == 1:
        return f"Fastest decay at any sensitivity from {theta} on: {time}."
    closed = isinstance(delay, Erlang | Deterministic)
    if not closed and best.value > 0.99 * largest_sensitivity(system):
        return f"Fastest decay at the largest sensitivity looked at, {theta}: {time}."
    return f"Fastest decay at sensitivity {theta}: {time}."
