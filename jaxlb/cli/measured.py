"""Measured delays: a column of a CSV file, and its two moments."""

import csv
import math
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np


class Measured(NamedTuple):
    """How many delays, their mean, s, and their coefficient of variation."""

    number: int
    mean: float
    cv: float
    column: str


def read_delays(path: Path, column: str | None) -> Measured:
    """The delays of one column: by its name in the first row, or by its number from one.

    Without `column` the file has one, with or without a name. Each error names the option, the
    demand, and the row.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise click.UsageError(
            f"`--delays` must be a CSV file, got {str(path)!r} ({error})."
        ) from error
    if not rows:
        raise click.UsageError(f"`--delays` must have rows, got an empty {str(path)!r}.")
    place, name, first = _place(rows, column, path)
    values = []
    for number, row in enumerate(rows[first:], first + 1):
        text = row[place].strip() if place < len(row) else ""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise click.UsageError(
                f"`--delays` must hold positive numbers of seconds, got {text!r} in row {number} "
                f"of {str(path)!r}."
            )
        values.append(value)
    if len(values) < 2:
        raise click.UsageError(f"`--delays` must hold two delays or more, got {len(values)}.")
    mean = float(np.mean(values))
    return Measured(len(values), mean, float(np.std(values, ddof=1) / mean), name)


def _place(rows: list[list[str]], column: str | None, path: Path) -> tuple[int, str, int]:
    """Place of the column, its name, and the first row of numbers."""
    names = [name.strip() for name in rows[0]]
    named = any(not _is_number(name) for name in names)
    if column is None:
        if len(names) > 1:
            raise click.UsageError(
                f"`--column` must be given, for {str(path)!r} has {len(names)}: {', '.join(names)}."
            )
        return 0, names[0] if named else "1", int(named)
    if named and column in names:
        return names.index(column), column, 1
    if column.isdecimal() and 1 <= int(column) <= len(names):
        place = int(column) - 1
        return place, names[place] if named else column, int(named)
    raise click.UsageError(
        f"`--column` must be one of {', '.join(names)}, or a number from 1 to {len(names)}, got "
        f"{column!r}."
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
