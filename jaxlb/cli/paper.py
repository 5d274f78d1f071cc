"""`jaxlb paper`."""

import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import jax

from ..paper import IMBALANCE_HORIZON, PARTS, num_steps, reproduce


@click.command("paper")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default="paper-results",
    show_default=True,
    help="Folder for the results; made if absent.",
)
@click.option(
    "--only",
    type=click.Choice(PARTS),
    multiple=True,
    help="Make this part only; may be given several times.",
)
@click.option(
    "--horizon",
    type=float,
    default=IMBALANCE_HORIZON,
    show_default=True,
    help="Last time of Figures 5 to 7, which the paper does not state.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Random seed of the sample paths."
)
def command(out: Path, only: tuple[str, ...], horizon: float, seed: int) -> None:
    """Reproduce the paper: Figures 2 to 7 and a report on its claims.

    Writes each figure as PNG, PDF and CSV, the claims as claims.json, and all of it together as
    report.md and report.html. Takes a minute and a half on two cores.

    \b
    Examples:
      jaxlb paper
      jaxlb paper --only fig5 --only fig7 --horizon 80 --out long-run
    """
    if not (math.isfinite(horizon) and horizon > 0):
        raise click.UsageError(f"`--horizon` must be positive and finite, got {horizon}.")
    if not 0 <= seed < 2**32:
        raise click.UsageError(f"`--seed` must be from 0 to 2^32 - 1, got {seed}.")
    _require_writable(out)
    jax.config.update("jax_enable_x64", True)
    parts = only or PARTS
    with _progress(num_steps(parts)) as progress:
        path = reproduce(out, parts, horizon, seed, progress)
    click.echo(f"Done. Open {path}")


def _require_writable(folder: Path) -> None:
    if folder == Path():
        raise click.UsageError("`--out` must be the name of a folder, got ''.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise click.UsageError(
            f"`--out` must be a folder that can be written, got {str(folder)!r} ({error.strerror})."
        ) from error


@contextmanager
def _progress(steps: int) -> Iterator[Callable[[str], object]]:
    """A function to call when a step begins: a bar on a terminal, else a line for each step."""
    if not sys.stderr.isatty():
        count = iter(range(1, steps + 1))
        yield lambda step: click.echo(f"[{next(count)}/{steps}] {step}", err=True)
        return
    bar = click.progressbar(
        length=steps,
        file=sys.stderr,
        width=24,
        show_pos=True,
        item_show_func=lambda step: str(step or "")[:48],
    )
    with bar:
        begun = False

        def begin(step: str) -> None:
            nonlocal begun
            # The bar counts what is done, so the first step moves it by nothing.
            bar.update(int(begun), step)
            begun = True

        yield begin
        bar.update(1)
