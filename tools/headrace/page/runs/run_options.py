"""Parse the options of a run: a filter, skipped samples and a mixture.

A token contains only their digests. A checkpoint's state contains them in full, and users have them
in the code of their jobs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import BadArgumentError

if TYPE_CHECKING:
    from headrace.client.options.mixture import Mixture
    from headrace.client.options.skips import SkipChoice

_DIGEST: Final = re.compile("[0-9a-f]{32}")
_ID: Final = re.compile("[0-9]{1,18}")
_COMMENT: Final = re.compile("#[^\n]*")
_MIXTURE: Final = (
    "the JSON of a mixture, from a state or from `headrace order --print-mixture`, or NAME=WEIGHT "
    "for each dataset"
)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run, as text.

    Attributes:
        where: The filter of a single dataset.
        skips: The skipped samples of a single dataset: ids, or the digest of a list of the server.
        mixture: The mixture, with the filters and the skipped samples of its datasets.
    """

    where: str = ""
    skips: str = ""
    mixture: str = ""

    def or_else(self, other: RunOptions) -> RunOptions:
        """Return these options, with missing ones from ``other``."""
        return RunOptions(
            self.where or other.where, self.skips or other.skips, self.mixture or other.mixture
        )


def options_in_state(state: Mapping[str, Any]) -> RunOptions:
    """Return the options in a checkpoint's state."""
    spec = state.get("spec")
    if not isinstance(spec, Mapping):
        return RunOptions()
    where, skips, mixture = (spec.get(name) for name in ("where", "skips", "mixture"))
    if isinstance(skips, list):
        skips = " ".join(str(each) for each in skips)
    return RunOptions(
        where if isinstance(where, str) else "",
        skips if isinstance(skips, str) else "",
        json.dumps(mixture, separators=(",", ":")) if isinstance(mixture, Mapping) else "",
    )


def read_skips(text: str) -> SkipChoice | None:
    """Parse ids separated by commas, spaces or lines, or the digest of a list.

    A ``#`` starts a comment, as in the lists of a server.

    Raises:
        BadArgumentError: The text is neither.
    """
    from headrace.client.options.skips import skip_choice  # noqa: PLC0415 - few views need it

    stripped = text.strip()
    if not stripped or _DIGEST.fullmatch(stripped):
        return skip_choice(stripped or None)
    words = _COMMENT.sub("", stripped).strip("[] \r\n\t").replace(",", " ").split()
    for word in words:
        if not _ID.fullmatch(word):
            raise BadArgumentError(
                f"{word[:40]!r} is not a sample id; expected ids separated by commas, spaces or "
                "lines, or the 32 digits of a list that the server has",
                field="skips",
            )
    return skip_choice([int(word) for word in words])


def read_mixture_text(text: str) -> Mixture:
    """Parse a mixture: JSON, or ``NAME=WEIGHT`` for each dataset.

    Raises:
        BadArgumentError: The text is neither, or not a valid mixture.
    """
    from headrace.client.options.mixture import (  # noqa: PLC0415 - few views need it
        Mixture,
        MixtureEntry,
        mixture_from,
    )

    stripped = text.strip()
    if not stripped.startswith("{"):
        pairs = [word.rpartition("=") for word in stripped.split()]
        return Mixture(
            tuple(
                MixtureEntry(name, proportion=_weight(weight)) if equals else MixtureEntry(weight)
                for name, equals, weight in pairs
            )
        )
    try:
        fields = json.loads(stripped)
    except (ValueError, RecursionError) as error:
        raise BadArgumentError(
            f"the mixture starts like JSON but cannot be read; expected {_MIXTURE}",
            field="mixture",
        ) from error
    # The options of the order, which `headrace order --print-mixture` prints, are in the token.
    fields.pop("order", None)
    return mixture_from(fields)


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise BadArgumentError(
            f"{text[:40]!r} is not a weight; expected {_MIXTURE}", field="mixture"
        ) from error
