"""The step that calls a registered transform."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

import pyarrow as pa

from headrace.errors import BadArgumentError, StepFailedError, TokenSpecChangedError
from headrace.order import (
    TOKENIZER,
    TRANSFORMS_LIMIT_BYTES,
    Token,
    images_title,
    mixing_step,
    split_images,
    tokenizer_version,
)
from headrace.payload import BFLOAT16, SAMPLE_ID_COLUMN
from headrace.server.batch.batch_values import Batch, Claim
from headrace.server.images.files import decoder_versions
from headrace.server.layout.wire_columns import WireColumn
from headrace.server.settings.transform_config import StepVersion, TransformConfig
from headrace.server.steps.arrow_values import arrow_batch, arrow_columns, arrow_field, arrow_values
from headrace.server.steps.column_steps import Columns
from headrace.server.steps.mix_images import MIXING
from headrace.server.steps.registered import Registered
from headrace.server.steps.tokenize_texts import wanted_tokenizer
from headrace.server.steps.transform_pool import TransformPool
from headrace.v1 import shard_service_pb2 as pb

# A batch is in memory as Arrow columns, as the serialized form, which grows by doubling, and as the
# bytes to send; an answer as received, as bytes, and as columns.
_COPIES = 4


class TransformStep:
    """Call an operator's function with all columns except the server's own."""

    def __init__(self, message: pb.Transform, pool: TransformPool) -> None:
        self._config = _wanted(message, pool)
        self._pool = pool
        self._schema = pa.schema([])

    def columns(self, before: Columns) -> dict[str, WireColumn]:
        """Return the columns that the function makes, by calling it with a batch without rows.

        Raises:
            BadArgumentError: A column has a type that cannot be passed to the function.
            StepFailedError: It fails for that batch, or returns columns that cannot be sent.
        """
        own = [column for name, column in before.items() if name != SAMPLE_ID_COLUMN]
        for column in own:
            if column.dtype == BFLOAT16:
                raise BadArgumentError(
                    f"transform: column {column.name!r} is bfloat16, which Arrow does not have; "
                    "request another dtype in Normalize",
                    field="steps",
                )
        schema = pa.schema([arrow_field(column) for column in own])
        self._schema = self._pool.schema(self._config.name, schema)
        made = {each.name: each for each in arrow_columns(self._schema, title=self._config.title)}
        if SAMPLE_ID_COLUMN in before:
            made[SAMPLE_ID_COLUMN] = before[SAMPLE_ID_COLUMN]
        return made

    def run(self, batch: Batch, *, claim: Claim) -> Generator[None, None, Batch]:
        """Transform a batch; yields while it waits.

        Args:
            batch: The columns of the batch.
            claim: Is called with the number of bytes before they are allocated.

        Raises:
            StepFailedError: The function fails, crashes, takes too long or returns other columns.
        """
        columns = dict(batch.columns)
        sent = _COPIES * sum(each.nbytes for each in columns.values())
        claim(sent)
        ids = columns.pop(SAMPLE_ID_COLUMN, None)
        keys = pa.array(batch.keys, pa.uint64())
        made = yield from self._pool.run(
            self._config.name,
            arrow_batch(columns),
            keys,
            claim=lambda size: claim(sent + _COPIES * size),
        )
        if not made.schema.equals(self._schema):
            raise StepFailedError(
                f"the transform {self._config.title} returned the columns {_text(made.schema)}, "
                f"but {_text(self._schema)} for a batch without rows; it must always return the "
                "same columns",
                transform=self._config.title,
            )
        found = arrow_values(made)
        if ids is not None:
            found[SAMPLE_ID_COLUMN] = ids
        return replace(batch, columns=found)


def wanted_transforms(
    request: pb.ReadBatchesRequest, token: Token | None, registered: Registered
) -> tuple[tuple[StepVersion, ...], str]:
    """Return the transforms and tokenizers of a request's steps, and the token's image entries.

    Raises:
        BadArgumentError: One is not registered, or there are too many for a token.
        ConfigurationError: The request decodes images, but the decoder is not installed.
        TokenSpecChangedError: They differ from the token's.
    """
    steps = request.steps
    found = tuple(each for step in steps if (each := _step_version(step, registered)) is not None)
    images = images_title_of(steps)
    text = transforms_text(found, images)
    if token is None or token.transforms == text:
        return found, images
    (others, digest, decoder), wanted = split_images(token.transforms), split_images(text)
    if others != wanted[0]:
        raise TokenSpecChangedError(
            f"the token is for the transforms [{others}], but [{wanted[0]}] are requested; request "
            "the token's, in the same order, or start over",
            token_transforms=others,
            transforms=wanted[0],
        )
    if digest != wanted[1]:
        raise TokenSpecChangedError(
            f"the token is for images that went through other steps ({digest or 'none'}) than "
            f"those requested ({wanted[1] or 'none'}); request the same image transforms, at the "
            "same places in steps, or start over",
            token_transforms=digest,
            transforms=wanted[1],
        )
    # A token from before the first batch names no decoder.
    if decoder not in {"", wanted[2]} and not request.allow_decoder_change:
        raise TokenSpecChangedError(
            f"this server decodes images with {decoder_versions()}, but the token's server used "
            "other versions, whose pixels may differ; ask a server that has those, or accept the "
            "change with allow_decoder_change",
            token_transforms=decoder,
            transforms=wanted[2],
        )
    return found, images


def images_title_of(steps: Sequence[pb.BatchStep]) -> str:
    """Return what a token contains about image steps and their decoder."""
    found = [
        (place, encoded)
        for place, step in enumerate(steps)
        if (encoded := _image_step(step)) is not None
    ]
    return images_title(found, decoder_versions()) if found else ""


def _image_step(step: pb.BatchStep) -> bytes | None:
    if step.decode_image.transforms:
        return step.decode_image.SerializeToString(deterministic=True)
    if step.WhichOneof("step") in MIXING:
        return mixing_step(step.SerializeToString(deterministic=True))
    return None


def transforms_text(configs: Sequence[StepVersion], images: str = "") -> str:
    """Return what a token contains about transforms.

    Raises:
        TokenSpecChangedError: It would be too long.
    """
    text = ",".join([*(config.title for config in configs), *([images] if images else [])])
    if len(text) > TRANSFORMS_LIMIT_BYTES:
        raise TokenSpecChangedError(
            f"the transforms {text} have {len(text)} characters in total, but at most "
            f"{TRANSFORMS_LIMIT_BYTES} fit into a token; use fewer, or shorter names",
            field="steps",
        )
    return text


def _step_version(step: pb.BatchStep, registered: Registered) -> StepVersion | None:
    """Return what a token contains about a step; None for nothing."""
    if step.HasField("transform"):
        config = _wanted(step.transform, registered.transforms)
        return StepVersion(config.name, config.version)
    if step.HasField("tokenize"):
        message = step.tokenize
        digest = wanted_tokenizer(message, registered.tokenizers).digest
        version = tokenizer_version(message.column, digest, special_tokens=message.special_tokens)
        return StepVersion(TOKENIZER, version)
    return None


def _wanted(message: pb.Transform, pool: TransformPool) -> TransformConfig:
    config = pool.config(message.name)
    if message.version not in {"", config.version}:
        raise TokenSpecChangedError(
            f"the transform {message.name} has version {config.version} here, but "
            f"{message.version[:100]!r} is requested; ask a server that has it",
            field="steps",
        )
    return config


def _text(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
