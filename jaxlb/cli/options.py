"""What commands share: numbers, a delay from a mean and a shape, files to write."""

import math
from pathlib import Path
from typing import Any

import click

from .. import Deterministic, Erlang, from_mean_cv
from ..model import AbstractDelay

PICTURES = (".png", ".pdf", ".svg")
MOST_STAGES = 10**6
# Below this coefficient of variation the nearest Erlang delay is taken: its own is within 1 % of
# what was asked for, and its numbers have formulas.
SMALL_CV = 0.2
# Products of three numbers in this range, squared, are still numbers.
LEAST, LARGEST = 1e-50, 1e50


class Number(click.ParamType):
    """A number in a range, or also zero; the error names option, demand and value."""

    name = "number"

    def __init__(self, least: float = LEAST, largest: float = LARGEST, zero: bool = False):
        self.least, self.largest, self.zero = least, largest, zero

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        number = _plain_number(float, value)
        if self.least <= number <= self.largest or (self.zero and number == 0):
            return abs(number)
        demand = f"{'0 or ' if self.zero else ''}from {self.least:g} to {self.largest:g}"
        raise click.UsageError(f"`{param.opts[0]}` must be {demand}, got {value}.")


class Stages(click.ParamType):
    """A whole number from one, or infinity."""

    name = "number"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        if str(value).strip().lower() in ("inf", "infinity"):
            return math.inf
        number = _plain_number(int, value)
        if 1 <= number <= MOST_STAGES:
            return float(number)
        raise click.UsageError(
            f"`{param.opts[0]}` must be a whole number from 1 to {MOST_STAGES}, or inf, "
            f"got {value}."
        )


def _plain_number(kind: Any, value: Any) -> float | int:
    """NaN if it is none, or has Python's underscores."""
    try:
        return math.nan if "_" in str(value) else kind(value)
    except ValueError:
        return math.nan


def option(name: str, kind: click.ParamType, text: str, **more: Any) -> Any:
    """An option of this kind; required unless `required=False` or a default is given."""
    more = {"required": "default" not in more, "show_default": "default" in more} | more
    return click.option(name, type=kind, help=text, **more)


def dispatcher_options(mean_required: bool) -> Any:
    """Rates, and a delay by its mean and its shape."""
    options = (
        option("--arrival-rate", Number(), "Arrivals per server, 1/s."),
        option("--service-rate", Number(), "Completions per job in service, 1/s."),
        option(
            "--delay-mean",
            Number(),
            "Mean time from routing to service, s.",
            required=mean_required,
        ),
        option(
            "--stages",
            Stages(),
            "Exponential stages of the delay: 1 is exponential, inf constant.",
            required=False,
        ),
        option(
            "--delay-cv",
            Number(1e-3, 1e6, zero=True),
            "Instead of --stages: standard deviation of the delay over its mean; 0 is constant. "
            "With neither, the delay is constant, the worst case of its mean.",
            required=False,
        ),
    )

    def with_options(command: Any) -> Any:
        # The one applied last is shown first.
        for one in reversed(options):
            command = one(command)
        return command

    return with_options


def output_options(command: Any) -> Any:
    """For machines, and for people who would rather look."""
    picture = click.option(
        "--plot",
        "picture",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write a picture: PNG, PDF or SVG, by the suffix.",
    )
    as_json = click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object, nothing else."
    )
    return as_json(picture(command))


def delay_of(mean: float, stages: float | None, cv: float | None) -> AbstractDelay:
    """The law of this mean with so many stages, or this coefficient of variation, or constant."""
    if stages is not None and cv is not None:
        raise click.UsageError(
            f"`--stages` must not be given with `--delay-cv`, got {stages:g} and {cv:g}."
        )
    if stages is None:
        if cv is None or cv == 0:
            return Deterministic(mean)
        if cv >= SMALL_CV:
            return from_mean_cv(mean, cv)
        stages = round(cv**-2)
    return Deterministic(mean) if math.isinf(stages) else Erlang(mean, int(stages))


def require_picture(path: Path) -> None:
    """An error unless it is a file for a picture that can be written."""
    if path.suffix.lower() not in PICTURES:
        raise click.UsageError(f"`--plot` must end with {', '.join(PICTURES)}, got {str(path)!r}.")
    require_writable("--plot", path)


def require_writable(name: str, path: Path) -> None:
    """An error that names the option unless the file can be written; it is left as it was."""
    try:
        # A link stays, even one to a file that is not there yet.
        target = path.resolve()
        there = target.exists()
        target.open("ab").close()
        if not there:
            target.unlink()
    except OSError as error:
        raise click.UsageError(
            f"`{name}` must be a file that can be written, got {str(path)!r} ({error.strerror})."
        ) from error
