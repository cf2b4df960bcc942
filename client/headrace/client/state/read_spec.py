"""What one rank reads, wherever it starts: values in, values out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.client.options.read_request import ReadOptions
from headrace.client.options.stage import OrderStage, Stage, token_text
from headrace.client.state.state import adopt_batch_size, adopt_order
from headrace.client.state.subject import Subject
from headrace.errors import BadArgumentError
from headrace.order import (
    EndMode,
    EpochPlan,
    OrderSpec,
    Token,
    decode_token,
    encode_token,
    stages_of,
)


@dataclass(frozen=True, slots=True)
class Reading:
    """The batches of one rank, as the user of a dataset described them.

    Attributes:
        subject: What is read.
        order: The order of samples; if the unit is free, it is the token's or the global batch.
        unit_is_free: Whether the user has not set the unit.
        batch_size: Samples per batch of this rank, or None.
        global_batch_size: Samples per batch over all ranks, from the user or a token, or None.
        rank: This rank, in [0, ``world_size``); ranks with the same samples are one here.
        world_size: Number of ranks, >= 1.
        end: How an incomplete last batch is treated.
        columns: Names of the columns to read; empty for all.
        with_ids: Whether batches have sample ids.
        order_stages: What the server does with the order, besides the stages of the subject.
        stages: What the server does with each batch.
        end_epoch: First epoch not to read, or None.
    """

    subject: Subject
    order: OrderSpec
    unit_is_free: bool
    batch_size: int | None
    global_batch_size: int | None
    rank: int
    world_size: int
    end: EndMode
    columns: tuple[str, ...]
    with_ids: bool
    order_stages: tuple[OrderStage, ...]
    stages: tuple[Stage, ...]
    end_epoch: int | None

    def __post_init__(self) -> None:
        """Refuse stages that the subject cannot have."""
        for stage in self.order_stages:
            stage.check(is_mixture=not self.subject.name)

    @property
    def has_size(self) -> bool:
        """Whether the global batch size is known."""
        return self.global_batch_size is not None or self.batch_size is not None

    def known_global_batch_size(self) -> int:
        """Return the samples per batch over all ranks.

        Raises:
            BadArgumentError: Neither the user nor a token gives it.
        """
        if self.global_batch_size is not None:
            return self.global_batch_size
        if self.batch_size is None:
            raise BadArgumentError(
                "neither batch_size nor Sharding(global_batch_size=…) is given, and no state was "
                "loaded; pass batch_size=, the samples per batch of this rank",
                field="batch_size",
            )
        return self.batch_size * self.world_size

    def options(self, token: bytes | None) -> ReadOptions:
        """Return the options of requests.

        Args:
            token: The token of the place to read from, if there is one.

        Raises:
            BadArgumentError: The options are impossible.
        """
        size, order = self.known_global_batch_size(), self.order
        if self.unit_is_free:
            # The unit stays as it was at the start of the run, even if the global batch changes.
            unit = size if token is None else decode_token(token).spec.unit
            order = replace(order, unit=unit)
        return ReadOptions(
            dataset=self.subject.name,
            stages=(
                *self.subject.stages,
                *(stage for stage in self.order_stages if stage.is_asked),
                *self.stages,
            ),
            order=order,
            global_batch_size=size,
            rank=self.rank,
            world_size=self.world_size,
            end=self.end,
            columns=self.columns,
            with_ids=self.with_ids,
            end_epoch=self.end_epoch,
        )

    def said(self, stages: Sequence[Stage], token: bytes | None) -> dict[str, str]:
        """Return in words what is read with other stages, by the names of options.

        Not what tokens or servers say: of ranks that read the same, some may not have asked yet.
        """
        options = self.options(token)
        names = (
            *("dataset", "global_batch_size", "rank", "world_size", "order", "end"),
            *("columns", "with_ids", "end_epoch"),
        )
        return {
            **{name: repr(getattr(options, name)) for name in names},
            "stages": repr(tuple(stages)),
        }

    def adopted(self, token: Token, saved: Mapping[str, object]) -> Reading:
        """Return the reading that continues from a token.

        Args:
            token: Where the run continues.
            saved: What the state says in words; empty if only the token is known.

        Raises:
            TokenSpecChangedError: The token belongs to other options; the message names them.
        """
        return replace(
            self,
            order_stages=tuple(stage.adopted(token) for stage in self.order_stages),
            order=adopt_order(self.order, token, unit_is_free=self.unit_is_free),
            global_batch_size=adopt_batch_size(
                token,
                batch_size=self.batch_size,
                global_batch_size=self.global_batch_size,
                group_count=self.world_size,
            ),
            subject=self.subject.at(token, saved),
        )

    def is_in_version_of(self, token: Token) -> bool:
        """Return whether a token is of the described subject's version."""
        return self.subject.token_start(self.order)[0] == token.fingerprint

    def plan(self, position: int, token: bytes | None) -> EpochPlan:
        """Return how the rest of an epoch is cut into batches; the subject must be described."""
        options = self.options(token)
        return EpochPlan(
            sample_count=self.subject.epoch_sample_count(options.order),
            base=position,
            global_batch_size=options.global_batch_size,
            end=self.end,
        )

    def first_token(self, *, epoch: int, position: int) -> bytes:
        """Return the token of a place before the first batch; the subject must be described."""
        options = self.options(None)
        fingerprint, chosen = self.subject.token_start(options.order)
        texts = {stage.stage_name: stage.text() for stage in self.order_stages}
        return encode_token(
            Token(
                fingerprint=fingerprint,
                stages=chosen + stages_of(**texts, transforms=token_text(self.stages)),
                spec=options.order,
                epoch=epoch,
                position=position,
                global_batch_size=options.global_batch_size,
                step=0,
                sample_count=0,
            )
        )
