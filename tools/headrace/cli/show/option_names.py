"""Say in an error what a command calls the things that Python code calls otherwise.

Errors are raised by functions, and name their parameters: ``mode='append'``. A command declares
its options under the names of these parameters, and so both names are known here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import click

_QUOTED = r"'[^'\s]*'"
_SETTING = re.compile(
    r"(?<![\w.`=-])(?P<owner>[A-Z]\w*\()?(?P<name>[a-z][a-z_]*)="
    rf"(?P<value>(?:{_QUOTED}(?:(?:, | or ){_QUOTED})*)|\w*)(?![\w\[({{\"…])(?P<end>\))?"
)
# With an underscore, it is no word of a sentence.
_NAME = re.compile(r"(?<![\w.`'\"=/{-])[a-z]+(?:_[a-z]+)+(?![\w.`'\"=(\[/-])")
# A field of an object that a command takes, such as `order.lanes`.
_OWNED = re.compile(r"^[A-Za-z]+\.(?P<name>[a-z_]+)\b")
_LEADING = re.compile(r"(?P<name>[a-z][a-z_]*)(?= (?:is|has|are) |: )")


def in_options(text: str, command: click.Command, typed: Sequence[str] = ()) -> str:
    """Return a message with the options of a command in place of Python's parameters.

    Args:
        text: The message. ``name=value`` becomes ``--name value``, also in ``Options(name=value)``,
            and ``name`` at its start, or anywhere with an underscore, becomes ``--name``, for each
            ``name`` that the command has; other parts stay.
        command: The command that failed.
        typed: The arguments of the command line; what stands in one of them is kept as it is.
    """
    options = {
        (parameter.name or "").removesuffix("_"): parameter
        for parameter in command.params
        if isinstance(parameter, click.Option)
    }
    text = _OWNED.sub(lambda found: found["name"] if found["name"] in options else found[0], text)
    leading = _LEADING.match(text)
    if leading and leading["name"] in options:
        text = _longest(options[leading["name"]]) + text[leading.end() :]
    text = _NAME.sub(
        lambda found: (
            found[0]
            if found[0] not in options or any(found[0] in each for each in typed)
            else _longest(options[found[0]])
        ),
        text,
    )
    return _SETTING.sub(
        lambda found: found[0] if any(found[0] in each for each in typed) else _in(found, options),
        text,
    )


def _in(found: re.Match[str], options: Mapping[str, click.Option]) -> str:
    option = options.get(found["name"])
    if option is None:
        return found[0]
    name, value = _longest(option), found["value"].replace("'", "")
    if option.is_flag and value in {"True", "False"}:
        off = option.secondary_opts[0] if option.secondary_opts else f"no {name}"
        shown = name if value == "True" else off
    else:
        shown = f"{name} {value}" if value else name
    if found["owner"] and found["end"]:
        return shown
    return f"{found['owner'] or ''}{shown}{found['end'] or ''}"


def _longest(option: click.Option) -> str:
    return max(option.opts, key=len)
