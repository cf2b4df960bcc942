"""Options of reading text files."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Literal, get_args

from headrace.arguments import flag, shown, text
from headrace.errors import BadArgumentError

OnError = Literal["refuse", "skip"]
TextKind = Literal["csv", "json", "text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    r"""How to read CSV, JSON and lines of text; nothing is guessed from the content.

    Attributes:
        encoding: The encoding of CSV, JSON and text by its Python name, such as ``latin-1`` or
            ``utf-16``; a UTF-8 byte-order mark is left out.
        delimiter: The ASCII character between CSV fields, such as ``;`` or ``\t``. `None` is a
            comma, or a tab in files whose names end with ``.tsv`` or ``.tab``.
        header: Whether the first record of each CSV file names the columns; otherwise they are
            ``column0``, ``column1``, ….
        null_values: A value that means null in CSV if it is not quoted, such as ``NA``, besides
            empty fields.
        on_error: What to do with records of CSV, JSON and text that cannot be read, and with
            damaged images: ``refuse`` names them and writes nothing; ``skip`` leaves them out, and
            counts and lists them.
    """

    encoding: str = "utf-8"
    delimiter: str | None = None
    header: bool = True
    null_values: tuple[str, ...] = ()
    on_error: OnError = "refuse"

    def __post_init__(self) -> None:
        text("encoding", self.encoding, wanted="the name of an encoding, as a str")
        flag("header", self.header)
        if self.delimiter is not None:
            text("delimiter", self.delimiter, wanted="one ASCII character, as a str, or None")
        _check_nulls(self.null_values)
        if not _is_text_encoding(self.encoding):
            raise BadArgumentError(
                f"encoding is {self.encoding!r}, expected one that Python knows for text, such as "
                "utf-8, utf-16, latin-1 or cp1252",
                field="encoding",
            )
        if self.delimiter is not None and not _is_delimiter(self.delimiter):
            raise BadArgumentError(
                f"delimiter is {self.delimiter!r}, expected one ASCII character that is neither a "
                "quote nor a line end",
                field="delimiter",
            )
        if self.on_error not in get_args(OnError):
            raise BadArgumentError(
                f"on_error is {self.on_error!r}, expected refuse or skip", field="on_error"
            )

    def delimiter_of(self, name: str) -> str:
        """Return the delimiter of a file."""
        if self.delimiter is not None:
            return self.delimiter
        stem = name.lower().removesuffix(".gz").removesuffix(".bz2").removesuffix(".zst")
        return "\t" if stem.endswith((".tsv", ".tab")) else ","


def _check_nulls(values: object) -> None:
    if isinstance(values, list | tuple) and all(isinstance(value, str) for value in values):
        return
    raise BadArgumentError(
        f"null_values is {shown(values)}; expected a tuple of str, such as ('NA',)",
        field="null_values",
    )


def _is_text_encoding(name: str) -> bool:
    try:
        "".encode(name)  # codecs from bytes to bytes fail here
        # Some codecs, such as idna, cannot decode with another error handler than strict.
        codecs.getincrementaldecoder(name)("backslashreplace").decode(b"a", final=True)
    except (LookupError, UnicodeError, ValueError):
        return False
    return True


def _is_delimiter(text: str) -> bool:
    return len(text) == 1 and text.isascii() and text not in '"\r\n\0'
