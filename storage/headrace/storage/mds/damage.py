"""Describe damage inside a shard, for code that does not know which shard it reads."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import ShardCorruptError


class DamageError(Exception):
    """What was found, what was expected, and in which sample.

    Attributes:
        found: What was found and expected, in words.
        sample: Ordinal among the samples that were decoded, or `None` for the file as a whole.
    """

    def __init__(self, found: str, sample: int | None = None) -> None:
        super().__init__(found)
        self.found = found
        self.sample = sample


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """A block and its place, according to its index.

    Attributes:
        shard: The name of the file, with its dataset's URL.
        block: Ordinal in the dataset.
        first_sample: The ordinal in the shard of the block's first sample.
    """

    shard: str
    block: int
    first_sample: int = 0

    def damage(
        self, found: str, *, offset: int = 0, sample: int | None = None
    ) -> ShardCorruptError:
        """Return the error that says what was found at this place.

        Args:
            found: What was found and what was expected.
            offset: The offset of the byte in the uncompressed shard.
            sample: Ordinal in the block, or `None` for the block as a whole.
        """
        where = "" if sample is None else f", sample {self.first_sample + sample} of the shard"
        return ShardCorruptError(
            f"shard {self.shard}, block {self.block}, at byte {offset}{where}: {found}; "
            "restore the shard or convert the data again",
            shard=self.shard,
            block=self.block,
            offset=offset,
        )
