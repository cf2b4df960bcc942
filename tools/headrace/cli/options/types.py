"""Types of command-line values that click lacks."""

from __future__ import annotations

import math
import re
from pathlib import Path, PurePath
from typing import cast

import click

_PICTURES = (".png", ".svg", ".pdf")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


class SizeType(click.ParamType[int]):
    """A number of bytes, optionally followed by KiB, MiB, GiB or TiB."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return the number of bytes."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"(\d+)\s*([a-z]*)", str(value).strip().lower())
        if found is None or found[2] not in _UNITS:
            self.fail(
                f"{value!r} is not a size; expected bytes, or a number with MiB or GiB", param, ctx
            )
        return int(found[1]) * _UNITS[found[2]]


class DurationType(click.ParamType[float]):
    """A number followed by s, m, h or d, or 0. A bare 7 might be meant as days, and delete."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds."""
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])|0", str(value).strip().lower())
        seconds = math.inf if found is None else float(found[1] or 0) * _SECONDS[found[2] or "s"]
        if seconds == math.inf:
            self.fail(
                f"{value!r} is not a time; expected a number with s, m, h or d, such as 7d",
                param,
                ctx,
            )
        return seconds


class NumberType(click.FloatRange):
    """A finite number in a range. click accepts `nan` in every range."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number."""
        found = super().convert(cast("float", value), param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return found


class TargetType(click.ParamType[str]):
    """The address of a server, or several separated by commas."""

    name = "target"

    def __init__(self, *, several: bool = False) -> None:
        self._several = several

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the value unchanged."""
        del param, ctx
        from headrace.client.options.addresses import addresses_of  # noqa: PLC0415 - loads gRPC

        given = str(value)
        addresses_of([part for part in given.split(",") if part] if self._several else given)
        return given


class PairType(click.ParamType[tuple[str, str]]):
    """A value of the form ``NAME=VALUE``."""

    name = "NAME=VALUE"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Return what stands before and behind the sign."""
        if isinstance(value, tuple):
            return value
        name, equals, rest = str(value).partition("=")
        if not (name and equals and rest):
            self.fail(f"{value!r} is not {self.name}{self._advice(str(value))}", param, ctx)
        return name, rest

    def _advice(self, given: str) -> str:
        del given
        return ""


class NamedUrlType(PairType):
    """A value of the form ``NAME=URL``."""

    name = "NAME=URL"

    def _advice(self, given: str) -> str:
        last = PurePath(given).stem
        suggestion = f": pass {last}={given}" if "/" in given and last else ""
        return f", such as flowers=s3://bucket/flowers{suggestion}"


class FolderUrlType(click.ParamType[str]):
    """Where to write a dataset: a URL, or a local path that is not a file."""

    name = "url"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the value unchanged."""
        path = Path(str(value))
        for place in (path, *path.parents):
            if place.is_file():
                self.fail(
                    f"{place} is a file; expected a folder, or a URL such as s3://bucket/d",
                    param,
                    ctx,
                )
        return str(value)


class PictureType(click.ParamType[Path]):
    """An image file to write; its folder must exist before the work starts."""

    name = "file"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        """Return the path."""
        path = Path(str(value))
        if path.suffix not in _PICTURES:
            self.fail(f"{str(value)!r} does not end in {', '.join(_PICTURES)}", param, ctx)
        if not path.parent.is_dir():
            self.fail(
                f"the folder {str(path.parent)!r}, in which {path.name} would be written, does "
                "not exist",
                param,
                ctx,
            )
        return path


class WeightedUrlType(click.ParamType[tuple[str, float | None]]):
    """A value of the form ``URL`` or ``URL=WEIGHT``."""

    name = "URL[=WEIGHT]"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float | None]:
        """Return the URL and the weight, if given."""
        if isinstance(value, tuple):
            return value
        url, equals, weight = str(value).rpartition("=")
        if not equals or "/" in weight:  # as in the paths of partitions, such as year=2026/
            return str(value), None
        try:
            found = float(weight)
        except ValueError:
            found = math.nan
        if not math.isfinite(found):
            self.fail(
                f"{weight!r} is not a weight; expected URL=WEIGHT, or URL, with / at its end if "
                "the name of its folder contains =",
                param,
                ctx,
            )
        return url, found


DURATION = DurationType()
SIZE = SizeType()
NAMED_URL = NamedUrlType()
PAIR = PairType()
NOT_NEGATIVE = NumberType(min=0)
FOLDER_URL = FolderUrlType()
PICTURE = PictureType()
TARGET = TargetType()
TARGETS = TargetType(several=True)
WEIGHTED_URL = WeightedUrlType()
