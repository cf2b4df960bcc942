"""Find a command by name, run it, and turn every error into one line and an exit code.

Exit codes: 0 success; 1 failure; 2 wrong command line; 130 interrupted.
"""

from __future__ import annotations

import ast
import difflib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import click

from headrace.cli.show.option_names import in_options
from headrace.errors import HeadraceError

_FAILURE, _USAGE, _INTERRUPTED = 1, 2, 130

_USAGE_CODES = frozenset({"INVALID_ARGUMENT", "OUT_OF_RANGE"})
"""Codes of errors that only another command line can avoid."""

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
        return list(_commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        found = _commands().get(cmd_name)
        return None if found is None else cast("click.Command", found.load())

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what each command does, or what installs the packages that it lacks."""
        del ctx
        # To import all commands takes half a second, and where no package is missing none can fail.
        about = _summary if all(map(find_spec, _EXTRA_OF_PACKAGE)) else _summary_or_lack
        with formatter.section("Commands"):
            formatter.write_dl([(name, about(found)) for name, found in _commands().items()])

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


_CONTEXT = {"help_option_names": ["-h", "--help"], "show_default": True}


@click.group(cls=_LazyGroup, context_settings=_CONTEXT)
@click.version_option(version("headrace"), prog_name="headrace")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def group(ctx: click.Context, *, debug: bool) -> None:
    """Feed GPU trainers from shards in object storage.

    Convert data to shards, serve the shards, and read batches on any number of trainers. Trainers
    get the same samples after a crash, the loss of a server or a change of world size.

    \b
    headrace convert flights.csv s3://bucket/flights
    headrace serve flights=s3://bucket/flights
    headrace read localhost:50051 flights --batch-size 256
    """
    ctx.obj = debug


def _summary(command: EntryPoint) -> str:
    """Return the first sentence of a command's docstring; empty if it is no function."""
    spec = find_spec(command.module)
    source = "" if spec is None or spec.origin is None else Path(spec.origin).read_text()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == command.attr:
            return " ".join((ast.get_docstring(node) or "").partition(".")[0].split()) + "."
    return ""


def _summary_or_lack(command: EntryPoint) -> str:
    """Return the same, or what to type if a package that the command imports is missing."""
    try:
        command.load()
    except ModuleNotFoundError as error:
        return f"(pip install 'headrace[{_extra(error)}]')"
    return _summary(command)


def _one_line(text: str) -> str:
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
        # click raises this when the reader of our output has closed it (`headrace read … | head`).
        # That is not a failure, and flushing the buffer must not make it one.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the boundary of the program: users see no traceback
        if "--debug" in arguments:
            sys.excepthook(type(error), error, error.__traceback__)
        text, code = _message_and_code(error, arguments)
        click.echo(f"headrace: {_one_line(text)}", err=True)
        return code
    else:
        return code if isinstance(code, int) else 0
    return 0


def _message_and_code(error: Exception, arguments: Sequence[str]) -> tuple[str, int]:
    """Return the message and the exit code for an error."""
    if isinstance(error, HeadraceError):
        name = next(each for each in arguments if each in _commands())  # the one that raised it
        text = in_options(error.message, _commands()[name].load(), arguments)
        return text, _USAGE if error.code in _USAGE_CODES else _FAILURE
    if isinstance(error, click.ClickException):
        return _usage_message(error), _USAGE
    if isinstance(error, ModuleNotFoundError):
        return _missing_package(error), _FAILURE
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; --debug shows where", _FAILURE
    what = f"unexpected {type(error).__name__}: {error}"
    return f"{what}; this may be a bug, and `headrace --debug …` shows the traceback", _FAILURE


def _commands() -> dict[str, EntryPoint]:
    found = sorted(entry_points(group="headrace.commands"), key=lambda each: each.name)
    return {each.name: each for each in found}


def _usage_message(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = "headrace" if context is None else context.command_path
    text = error.format_message()
    for old, new in _REWORDED.items():
        text = text.replace(old, new)
    return f"{text}{'' if text.endswith(('.', '?', ')')) else '.'} See `{path} --help`."


_REWORDED = {
    "is not a valid integer range": "is not a whole number",
    "is not a valid float range": "is not a number",
    "is not a valid integer": "is not a whole number",
    "is not a valid float": "is not a number",
}


def _missing_package(error: ModuleNotFoundError) -> str:
    return (
        f"this command needs the package {_package(error)!r}, which is not installed here; "
        f"install it with pip install 'headrace[{_extra(error)}]'"
    )


def _extra(error: ModuleNotFoundError) -> str:
    return _EXTRA_OF_PACKAGE.get(_package(error), "all")


def _package(error: ModuleNotFoundError) -> str:
    return (error.name or "").partition(".")[0]
