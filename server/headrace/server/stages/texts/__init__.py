"""Tokens of texts, in a column or packed into rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.order import TOKENIZER, tokenizer_version
from headrace.server.batch.stage import Stage
from headrace.server.datasets.served import Served
from headrace.server.layout.wire_columns import WireColumn
from headrace.server.settings.server_config import ServerConfig
from headrace.server.stages.texts.pack_texts import PackTexts
from headrace.server.stages.texts.tokenize_texts import Tokenize, wanted_tokenizer
from headrace.server.stages.texts.tokenizers import Tokenizers, load_tokenizers
from headrace.server.stream.stage_plugs import StageKind, StagePlug
from headrace.server.stream.stream_setup import sample_title
from headrace.server.telemetry.metrics import Metrics
from headrace.v1 import shard_service_pb2 as pb


class _Texts(StagePlug):
    def __init__(self, tokenizers: Tokenizers) -> None:
        self._tokenizers = tokenizers
        kind = StageKind(
            "tokenize", pb.Tokenize, lambda options, _: Tokenize(options, tokenizers), self._title
        )
        super().__init__([kind])

    def first(
        self, served: Served, columns: tuple[WireColumn, ...]
    ) -> tuple[WireColumn, Stage] | None:
        """Return the stage that packs a dataset's texts into rows, if it stores their lengths."""
        packed = served.packed
        if packed is None or packed.texts is None:
            return None
        stage = PackTexts(
            packed,
            columns,
            self._tokenizers.of_lengths(packed.tokenizer, dataset=served.name),
            title=lambda sample: sample_title(served.shown_samples(np.array([sample]))),
            shown_ids=served.shown_ids,
        )
        return packed.texts, stage

    def _title(self, options: pb.Tokenize) -> str:
        digest = wanted_tokenizer(options, self._tokenizers).digest
        special_tokens = options.special_tokens
        version = tokenizer_version(options.column, digest, special_tokens=special_tokens)
        return f"{TOKENIZER}@{version}"


def open_stages(config: ServerConfig, metrics: Metrics) -> StagePlug:
    """Return the stages of a server.

    Raises:
        ConfigurationError: A tokenizer cannot be loaded.
    """
    del metrics
    return _Texts(Tokenizers(load_tokenizers(config.tokenizers)))


def check(config: ServerConfig) -> Iterator[str]:
    """Load the registered tokenizers.

    Raises:
        ConfigurationError: One cannot be loaded.
    """
    if config.tokenizers:
        load_tokenizers(config.tokenizers)
        yield f"tokenizers {', '.join(config.tokenizers)}"
