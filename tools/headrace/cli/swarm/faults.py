"""Parse the faults of a load test from the command line."""

from __future__ import annotations

import re
from typing import Any

import click

from headrace.loadtest import Cut, CutKind, Pause, Rescale

_SHARE = r"@(?P<share>\d+(?:\.\d+)?)%"
_PERCENT = re.compile(r"(?P<share>\d+(?:\.\d+)?)%")
_RESCALE = re.compile(rf"(?P<old>\d+):(?P<new>[1-9]\d*){_SHARE}")
_PAUSE = re.compile(rf"(?P<rank>\d+):(?P<seconds>\d+(?:\.\d+)?){_SHARE}")
_CUT = re.compile(
    r"(?P<kind>latency|bandwidth|blackhole|reset)(?:=(?P<value>\d+(?:\.\d+)?))?"
    r"(?::(?P<seconds>\d+(?:\.\d+)?))?"
)


class RescaleType(click.ParamType[Any]):
    """A value of the form ``OLD:NEW@SHARE%``."""

    name = "OLD:NEW@P%"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, Rescale]:
        del param, ctx

        match = _match(self, _RESCALE, value, "8:6@50%, from 8 ranks to 6 after half of the steps")
        return int(match["old"]), Rescale(int(match["new"]), float(match["share"]) / 100)


class PauseType(click.ParamType[Any]):
    """A value of the form ``RANK:SECONDS@SHARE%``."""

    name = "RANK:SECONDS@P%"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Pause:
        del param, ctx

        match = _match(
            self, _PAUSE, value, "3:10@25%, rank 3 pauses 10 s after a quarter of the steps"
        )
        return Pause(int(match["rank"]), float(match["seconds"]), float(match["share"]) / 100)


class ShareType(click.ParamType[float]):
    """A value of the form ``SHARE%``."""

    name = "P%"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the share, in (0, 1)."""
        del param, ctx
        share = float(_match(self, _PERCENT, value, "40%")["share"]) / 100
        if not 0 < share < 1:
            self.fail(
                f"{value!r} is not a share of a run; expected more than 0% and less than 100%"
            )
        return share


class CutType(click.ParamType[Any]):
    """A value of the form ``KIND[=VALUE][:SECONDS]``."""

    name = "KIND[=VALUE][:SECONDS]"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Cut:
        del param, ctx

        match = _match(
            self,
            _CUT,
            value,
            "reset, blackhole:5, latency=0.02 (seconds) or bandwidth=1048576 (bytes a second)",
        )
        if (match["kind"] in ("latency", "bandwidth")) != bool(float(match["value"] or 0)):
            self.fail(
                f"{value!r}: latency and bandwidth need a value above 0, and other kinds take none"
            )
        if match["kind"] == "blackhole" and not float(match["seconds"] or 0):
            self.fail(f"{value!r}: a blackhole needs a duration, such as blackhole:5")
        kind: CutKind = match["kind"]  # type: ignore[assignment] # the pattern allows no other
        return Cut(kind, float(match["value"] or 0), float(match["seconds"] or 0))


def _match(
    kind: click.ParamType[Any], pattern: re.Pattern[str], value: object, example: str
) -> re.Match[str]:
    match = pattern.fullmatch(str(value))
    if match is None:
        kind.fail(f"{value!r} is not a {kind.name}; expected one such as {example}")
    return match
