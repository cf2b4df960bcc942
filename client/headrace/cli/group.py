"""Find a command by name, run it, and turn every failure into one line and an exit code.

Exit codes: 0 done; 1 it failed; 2 the command line is wrong; 130 interrupted.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points, version

import click

from headrace.errors import HeadraceError

_FAILURE, _MISUSE, _INTERRUPTED = 1, 2, 130

_MISUSE_CODES = frozenset({"INVALID_ARGUMENT", "OUT_OF_RANGE"})
"""Codes of errors that can only be fixed by changing the command."""

_EXTRA_OF_PACKAGE = {
    "boto3": "storage",
    "fsspec": "storage",
    "grpc_health": "server",
    "grpc_reflection": "server",
    "jinja2": "page",
    "matplotlib": "loadtest",
    "pandas": "converter",
    "prometheus_client": "server",
    "pyarrow": "storage",
    "pyspark": "converter",
    "starlette": "page",
    "torch": "torch",
    "uvicorn": "page",
    "yaml": "server",
}


class _LazyGroup(click.Group):
    """A group whose commands are entry points: listed from metadata, imported one at a time."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(_commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        found = _commands().get(cmd_name)
        if found is None:
            return None
        command = found.load()
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; if there is none, suggest commands with similar names."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx))
            if not near:
                raise
            names = " or ".join(map(repr, near))
            raise click.UsageError(f"{error.message} Did you mean {names}?", ctx) from error


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("headrace"), prog_name="headrace")
@click.option("--debug", is_flag=True, help="Show the stack trace of a failure.")
@click.pass_context
def group(ctx: click.Context, *, debug: bool) -> None:
    """Feed GPU trainers from shards in object storage.

    Convert a data set to shards, serve the shards, and read batches from any number of trainers:
    the same samples after a crash, a lost server or a change of world size.

    \b
    headrace convert flights.csv s3://bucket/flights
    headrace serve flights=s3://bucket/flights
    headrace read localhost:50051 flights --batch-size 256
    """
    ctx.obj = debug


def _shown(text: str) -> str:
    """Return a message in one line, except for indented lines, which are examples."""
    lines = text.split("\n")
    count = next((at for at, line in enumerate(lines) if line.startswith("  ")), len(lines))
    first = " ".join(" ".join(lines[:count]).split())
    return "\n".join([first, *lines[count:]]) if count else first


def run(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code.

    Args:
        arguments: The arguments after the program's name.
    """
    try:
        code = group.main(
            list(arguments) or ["--help"], prog_name="headrace", standalone_mode=False
        )
    except SystemExit:
        # click ends like this when the reader of our output has closed it (`headrace read … |
        # head`); that is not a failure, and flushing the buffer must not make it one.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the boundary of the program: no trace reaches a user
        if "--debug" in arguments:
            sys.excepthook(type(error), error, error.__traceback__)
        text, code = _judge(error)
        click.echo(f"headrace: {_shown(text)}", err=True)
        return code
    else:
        return code if isinstance(code, int) else 0
    return 0


def _judge(error: Exception) -> tuple[str, int]:
    """Describe a failure in one line, and return whether the command line caused it."""
    if isinstance(error, HeadraceError):
        return error.message, _MISUSE if error.code in _MISUSE_CODES else _FAILURE
    if isinstance(error, click.ClickException):
        return _misuse(error), _MISUSE
    if isinstance(error, ModuleNotFoundError):
        return _missing(error), _FAILURE
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; --debug shows where", _FAILURE
    return (
        f"unexpected {type(error).__name__}: {error}; a bug? See --debug",
        _FAILURE,
    )


def _commands() -> dict[str, EntryPoint]:
    return {found.name: found for found in entry_points(group="headrace.commands")}


def _misuse(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = "headrace" if context is None else context.command_path
    text = error.format_message()
    for found, wanted in _CLICKS_WORDS.items():
        text = text.replace(found, wanted)
    return f"{text}{'' if text.endswith(_ENDS) else '.'} See `{path} --help`."


_ENDS = (".", "?", ")")
_CLICKS_WORDS = {
    "is not a valid integer range": "is not a whole number",
    "is not a valid float range": "is not a number",
    "is not a valid integer": "is not a whole number",
    "is not a valid float": "is not a number",
}


def _missing(error: ModuleNotFoundError) -> str:
    package = (error.name or "").partition(".")[0]
    extra = _EXTRA_OF_PACKAGE.get(package, "all")
    return (
        f"this command needs the package {package!r}, which is not installed here; install it "
        f"with pip install 'headrace[{extra}]'"
    )
