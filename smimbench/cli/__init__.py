"""The command line: its commands, exit codes, and errors in one line; commands import what they need."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence

import click

from smimbench.cli import items, reproduce, run, show, verify
from smimbench.cli.options import (
    BAD_INPUT,
    INTERRUPTED,
    OK,
    UNEXPECTED_ERROR,
    print_message,
)
from smimbench.files import ForeseenError, documentation, error_line


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a foreseeable error is printed as one line and gives exit code 2."""
    sys.exit(_run_command_line(arguments))


def _run_command_line(arguments: Sequence[str] | None) -> int:
    """Run a command, report an error in one line, and return the exit code."""
    # pydantic would read the entry points of every installed package, and end where those of one cannot be read.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if sys.stdout is None:
        print_message(
            "standard output is closed; send it to a file, a pipe or /dev/null"
        )
        return BAD_INPUT
    for stream in (sys.stdout, sys.stderr):
        # A letter that a terminal does not have is no reason to end.
        if isinstance(stream, io.TextIOWrapper) and stream.errors != "replace":
            stream.reconfigure(errors="replace")
    if arguments is None:
        arguments = sys.argv[1:]
    try:
        exit_code = cli.main(
            list(arguments) or ["--help"], prog_name="smimbench", standalone_mode=False
        )
        sys.stdout.flush()  # here, where a disk that is full can still be named
        return exit_code or OK
    except click.exceptions.Exit as error:
        return error.exit_code
    except (click.Abort, KeyboardInterrupt) as error:  # click turns Ctrl-C into Abort
        default_message = "interrupted; finished cells and points of theory are kept, rerun the same command to continue"
        print_message(str(error) or default_message)
        return INTERRUPTED
    except click.ClickException as error:
        print_message(error.format_message())
    except BrokenPipeError:  # the reader of our output has seen enough
        _discard_output()
        return OK
    except ForeseenError as error:
        print_message(str(error))
    except OSError as error:  # of a file that no command names
        file_name = error.filename or "the output"
        print_message(f"cannot use {file_name}: {error.strerror or error}")
        if not error.filename:
            _discard_output()  # or it is tried again at exit
    except Exception as error:  # the last resort: one line, never a traceback
        if os.environ.get("SMIMBENCH_TRACEBACK"):
            raise
        print_message(
            f"unexpected {error_line(error)}. This is a bug in smimbench or a plugin, please report it: "
            "SMIMBENCH_TRACEBACK=1 shows the traceback. Finished cells are kept"
        )
        return UNEXPECTED_ERROR
    return BAD_INPUT


def _discard_output() -> None:
    """Discard further standard output, so that Python's final flush of a closed pipe raises no error."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _OrderedGroup(click.Group):
    """Command group that lists commands in the order in which a new user needs them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order in which they are shown."""
        return list(self.commands)

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """List the commands in the help, each with its whole first sentence."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, (shown_command.help or "").partition("\n\n")[0])
                    for name, shown_command in self.commands.items()
                ]
            )


@click.group(
    cls=_OrderedGroup,
    commands=[
        run.run, run.tune, show.theory, show.show, show.report, show.compare, verify.verify, verify.submit,
        reproduce.reproduce, run.data, run.score, items.list_items, items.info, items.explain, items.plugins,
        items.check, items.new_package, items.doctor,
    ],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)  # fmt: skip
@click.version_option(package_name="smimbench", prog_name="smimbench")
def cli() -> None:
    """How far is a learning algorithm from the best that is possible?

    Attention models learned from Gaussian sequences, against the Bayes-optimal error of state evolution.

    Start with:  smimbench run quickstart

    Completion:  eval "$(_SMIMBENCH_COMPLETE=bash_source smimbench)"  (zsh_source, fish_source)
    """


cli.help = documentation(cli.callback)
