"""The command line. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from smimbench.cli.external import data, score
from smimbench.cli.items import check, doctor, info, list_items, new, plugins
from smimbench.cli.options import BAD_INPUT, INTERRUPTED, OK, complain
from smimbench.cli.run import run
from smimbench.cli.show import compare, report, show, theory

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["cli", "main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: every foreseeable error is one line on standard error and exit code 2."""
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    """Exit code of a command, after saying in one line what went wrong."""
    try:
        return cli.main(arguments, prog_name="smimbench", standalone_mode=False) or OK
    except click.exceptions.Exit as error:
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):  # click turns Ctrl-C into Abort
        complain("interrupted; every finished cell and point of theory is kept, run the same command again to go on")
        return INTERRUPTED
    except click.ClickException as error:
        complain(error.format_message())
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except _foreseeable() as error:
        complain(str(error))
    return BAD_INPUT


def _foreseeable() -> tuple[type[Exception], ...]:
    from smimbench.backend.device import BackendError
    from smimbench.files import StoreError
    from smimbench.problem.problem import ProblemError
    from smimbench.registry.registry import RegistryError
    from smimbench.registry.scaffold import ScaffoldError
    from smimbench.suite.errors import SuiteError
    from smimbench.testing.core import CheckError

    return SuiteError, RegistryError, BackendError, StoreError, ProblemError, ScaffoldError, CheckError


class _Commands(click.Group):
    """Commands in the order of a newcomer's day, not of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="smimbench", prog_name="smimbench")
def cli() -> None:
    """How far is a learning algorithm from the best that is possible?

    Attention models learned from Gaussian sequences, against the Bayes-optimal error of state evolution.

    Start with:  smimbench run quickstart
    """


for _command in (run, theory, show, report, compare, data, score, list_items, info, plugins, check, new, doctor):
    cli.add_command(_command)


if __name__ == "__main__":
    main()
