"""The command line: `jaxlb paper`."""

import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import click
import jax

from .paper import IMBALANCE_HORIZON, PARTS, num_steps, reproduce


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="jaxlb")
@click.pass_context
def commands(context: click.Context) -> None:
    """Load balancing in parallel infinite-server queues with action delay."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@commands.command()
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
def paper(out: Path, only: tuple[str, ...], horizon: float, seed: int) -> None:
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


def main() -> None:
    """Entry point: an error is one line and exit code 2, an interruption exit code 130."""
    try:
        commands.main(standalone_mode=False)
    except click.ClickException as error:
        _fail(error.format_message())
    except ValueError as error:
        # The library names the argument, the demand and the value.
        _fail(str(error))
    except OSError as error:
        _fail(f"cannot write {error.filename!s:.200}: {error.strerror}")
    except click.Abort:
        _fail("interrupted; what was finished is kept.", 130)


def _fail(message: str, code: int = 2) -> NoReturn:
    # One line, even if the argument that is shown holds a line break.
    click.echo(f"jaxlb: {' '.join(message.split())}", err=True)
    sys.exit(code)


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
