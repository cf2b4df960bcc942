"""The transforms and tokenizers that the operator registered and requests may name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import BadArgumentError, ConfigurationError
from headrace.server.settings.tokenizer_config import tokenizer_paths
from headrace.server.steps.transform_pool import NO_TRANSFORMS, TransformPool
from headrace.storage import Tokenizer, load_tokenizer


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
                f"tokenize: there is no tokenizer {name[:100]!r}; {self._known()}", field="steps"
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


@dataclass(frozen=True, slots=True)
class Registered:
    """The transforms and tokenizers that requests may name.

    Attributes:
        transforms: The operator's functions.
        tokenizers: The operator's tokenizers.
    """

    transforms: TransformPool
    tokenizers: Tokenizers


NOTHING_REGISTERED = Registered(NO_TRANSFORMS, Tokenizers({}))
"""What servers without registered transforms and tokenizers use."""


def load_tokenizers(stated: tuple[str, ...]) -> dict[str, Tokenizer]:
    """Return tokenizers by name, given settings of the form ``NAME=FILE``.

    Raises:
        ConfigurationError: A tokenizer cannot be loaded.
    """
    return {name: load_tokenizer(path) for name, path in tokenizer_paths(stated).items()}
