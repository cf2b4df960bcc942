"""What one rank reads, wherever it starts: values in, values out."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.client.options.deal import Deal
from headrace.client.options.mixture import Mixture
from headrace.client.options.read_request import ReadOptions
from headrace.client.options.skips import SkipChoice
from headrace.client.options.stage import Stage, token_text
from headrace.client.state.state import adopt_batch_size, adopt_order
from headrace.client.state.subject import Subject
from headrace.errors import BadArgumentError, TokenSpecChangedError
from headrace.order import (
    EndMode,
    EpochPlan,
    OrderSpec,
    Token,
    buckets_text,
    decode_token,
    encode_token,
    split_buckets,
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
        rank: This rank, in [0, ``world_size``).
        world_size: Number of ranks, >= 1.
        replication: Consecutive ranks with the same samples, >= 1.
        end: How an incomplete last batch is treated.
        columns: Names of the columns to read; empty for all.
        with_ids: Whether batches have sample ids.
        stages: What the server does with each batch.
        deal: How samples are dealt to ranks; None to deal them in order.
        buckets: Batches that are sorted by length together; 0 for none.
        end_epoch: First epoch not to read, or None.
    """

    subject: Subject
    order: OrderSpec
    unit_is_free: bool
    batch_size: int | None
    global_batch_size: int | None
    rank: int
    world_size: int
    replication: int
    end: EndMode
    columns: tuple[str, ...]
    with_ids: bool
    stages: tuple[Stage, ...]
    deal: Deal | None
    buckets: int
    end_epoch: int | None

    def __post_init__(self) -> None:
        """Refuse buckets for several datasets."""
        if self.buckets and self.subject.mixture is not None:
            raise BadArgumentError(
                f"order.buckets is {self.buckets} for a mixture, but buckets sort the samples of a "
                "single dataset; leave buckets out, or read one dataset",
                field="order",
            )

    @property
    def group_count(self) -> int:
        """Number of ranks with samples of their own."""
        return max(1, self.world_size // max(1, self.replication))

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
        return self.batch_size * self.group_count

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
            mixture=self.subject.mixture,
            skips=self.subject.skips,
            token_skips=self.subject.token_skips,
            where=self.subject.where,
            allow_new_skips=self.subject.allow_new_skips,
            stages=self.stages,
            deal=self.deal,
            buckets=self.buckets,
            order=order,
            global_batch_size=size,
            rank=self.rank,
            world_size=self.world_size,
            replication=self.replication,
            end=self.end,
            columns=self.columns,
            with_ids=self.with_ids,
            end_epoch=self.end_epoch,
        )

    def adopted(
        self,
        token: Token,
        mixture: Mixture | None = None,
        skips: SkipChoice | None = None,
        where: str = "",
    ) -> Reading:
        """Return the reading that continues from a token.

        Args:
            token: Where the run continues.
            mixture: The mixture of the state, if there is one.
            skips: The skips of the state.
            where: The filter of the state.

        Raises:
            TokenSpecChangedError: The token belongs to other options; the message names them.
        """
        buckets, _ = split_buckets(token.stage("buckets"))
        if self.buckets and self.buckets != buckets:
            raise TokenSpecChangedError(
                f"buckets is {self.buckets}, but the state has {buckets or 'none'}; give the "
                "buckets of its run, or start a new run without the state",
                field="buckets",
            )
        return replace(
            self,
            buckets=buckets,
            order=adopt_order(self.order, token, unit_is_free=self.unit_is_free),
            global_batch_size=adopt_batch_size(
                token,
                batch_size=self.batch_size,
                global_batch_size=self.global_batch_size,
                group_count=self.group_count,
            ),
            subject=self.subject.at(token, mixture, skips, where),
        )

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
        fingerprint, mixture, skips = self.subject.token_start(options.order)
        return encode_token(
            Token(
                fingerprint=fingerprint,
                stages=stages_of(
                    mixture=mixture,
                    filter=self.subject.kept,
                    skips=skips,
                    buckets=buckets_text(self.buckets, ""),
                    transforms=token_text(self.stages),
                ),
                spec=options.order,
                epoch=epoch,
                position=position,
                global_batch_size=options.global_batch_size,
                step=0,
                sample_count=0,
            )
        )
