"""The tokenizers that the operator registered and requests may name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from headrace.errors import BadArgumentError, ConfigurationError
from headrace.server.settings.plug_settings import by_name
from headrace.storage import Tokenizer, load_tokenizer

_STATED = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,39})=(?P<path>.+)")


class Tokenizers:
    """The tokenizers of a server, loaded when it starts. Clients never supply paths.

    Args:
        by_name: The tokenizers by name.
    """

    def __init__(self, by_name: Mapping[str, Tokenizer]) -> None:
        self._by_name = by_name
        self._by_digest = {each.digest: each for each in by_name.values()}

    def named(self, name: str) -> Tokenizer:
        """Return a tokenizer by its name.

        Raises:
            BadArgumentError: No tokenizer has that name.
        """
        found = self._by_name.get(name)
        if found is None:
            raise BadArgumentError(
                f"tokenize: there is no tokenizer {name[:100]!r}; {self._known()}", field="stages"
            )
        return found

    def of_lengths(self, digest: str, *, dataset: str) -> Tokenizer:
        """Return the tokenizer that lengths were counted with.

        Raises:
            ConfigurationError: That tokenizer is not registered.
        """
        found = self._by_digest.get(digest)
        if found is None:
            raise ConfigurationError(
                f"the lengths of {dataset!r} were counted with the tokenizer {digest}, but "
                f"{self._known()}; start the server with --tokenizer NAME=FILE and the file that "
                "`headrace index` was given, or run `headrace index` again with this server's",
                dataset=dataset,
                tokenizer=digest,
            )
        return found

    def _known(self) -> str:
        known = [f"{name} ({each.digest})" for name, each in self._by_name.items()]
        return f"this server has {', '.join(known)}" if known else "this server has no tokenizer"


def load_tokenizers(stated: Iterable[str]) -> dict[str, Tokenizer]:
    """Return tokenizers by name, given settings of the form ``NAME=FILE``.

    Raises:
        ConfigurationError: A tokenizer cannot be loaded.
    """
    wanted = "NAME=FILE, with a name of up to 40 letters, digits, '.', '_' and '-'"
    found = by_name(stated, _STATED, what="tokenizer", wanted=wanted)
    return {name: load_tokenizer(parts["path"]) for name, parts in found.items()}
