"""Tokens of texts, in a column or packed into rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from headrace.order import TOKENIZER, tokenizer_version
from headrace.server.batch.stage import Stage
from headrace.server.batch.titles import sample_title
from headrace.server.datasets.served import Served
from headrace.server.layout.wire_columns import WireColumn
from headrace.server.order_stages.packing.served_rows import PackedStage
from headrace.server.settings.plug_settings import PlugSettings
from headrace.server.settings.server_config import ServerConfig
from headrace.server.stages.texts.pack_texts import PackTexts
from headrace.server.stages.texts.tokenize_texts import Tokenize, wanted_tokenizer
from headrace.server.stages.texts.tokenizers import Tokenizers, load_tokenizers
from headrace.server.stream.stage_plugs import StageKind, StagePlug
from headrace.server.telemetry.metrics import Metrics
from headrace.v1 import texts_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSettings(PlugSettings):
    """The settings of texts.

    Attributes:
        tokenizers: Tokenizers that requests may name, or with which stored lengths were counted,
            each as ``NAME=FILE``, where FILE is a tokenizer.json of Hugging Face, as given to
            ``headrace index --tokenizer``. Needs the package of the ``[tokenize]`` extra.
    """

    tokenizers: tuple[str, ...] = ()


class Plug(StagePlug):
    """The stages of a server, with its tokenizers."""

    settings = TextSettings
    behind = PackedStage

    def __init__(self, config: ServerConfig, metrics: Metrics) -> None:
        del metrics
        tokenizers = Tokenizers(load_tokenizers(config.of_plug(TextSettings).tokenizers))
        self._tokenizers = tokenizers
        self.kinds = (
            StageKind(
                "tokenize",
                pb.Tokenize,
                lambda options, _: Tokenize(options, tokenizers),
                self._title,
            ),
        )

    @classmethod
    def check(cls, config: ServerConfig) -> Iterator[str]:
        if stated := config.of_plug(TextSettings).tokenizers:
            load_tokenizers(stated)
            yield f"tokenizers {', '.join(stated)}"

    def first(
        self, served: Served, columns: tuple[WireColumn, ...]
    ) -> tuple[WireColumn, Stage] | None:
        """Return the stage that packs a dataset's texts into rows, if it stores their lengths."""
        rows = served.stage(PackedStage)
        if rows is None or rows.packed.texts is None:
            return None
        packed = rows.packed
        stage = PackTexts(
            packed,
            columns,
            self._tokenizers.of_lengths(packed.tokenizer, dataset=served.name),
            title=lambda sample: sample_title(served.shown_samples(np.array([sample]))),
            shown_ids=served.shown_ids,
        )
        return rows.packed.texts, stage

    def _title(self, options: pb.Tokenize) -> str:
        digest = wanted_tokenizer(options, self._tokenizers).digest
        special_tokens = options.special_tokens
        version = tokenizer_version(options.column, digest, special_tokens=special_tokens)
        return f"{TOKENIZER}@{version}"
