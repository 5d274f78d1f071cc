"""The command line: `jaxlb paper`, `jaxlb simulate`, `jaxlb stability`, `jaxlb tune`."""

import sys
from importlib import import_module
from typing import NoReturn

import click


class _Commands(click.Group):
    """Commands that are imported when they are asked for: most need no pictures.

    Each is `command` of a module of its own name.
    """

    names = ("paper", "simulate", "stability", "tune")

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.names:
            return None
        return import_module(f".{cmd_name}", __name__).command


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="jaxlb")
@click.pass_context
def commands(context: click.Context) -> None:
    """Load balancing in parallel infinite-server queues with action delay."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


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
