"""MosaicML Streaming's DataLoader: one that knows how far its loop has got."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader

from headrace.compat.streaming.dataset import StreamingDataset


class StreamingDataLoader(DataLoader[Any]):
    """A DataLoader whose ``state_dict`` is the place after the last batch that the loop got.

    The state is the same on all ranks, and fits any number of ranks and workers with the same
    global batch.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make a DataLoader; the arguments are its own.

        Raises:
            ValueError: The batches differ from the dataset's, or need not come in their order.
        """
        super().__init__(*args, **kwargs)
        self._batches: int | None = None
        self._start = (0, 0)
        self.num_samples_yielded = 0
        if not isinstance(self.dataset, StreamingDataset):
            return
        wanted = self.dataset.batch_size
        if wanted is not None and self.batch_size != wanted:
            raise ValueError(
                f"batch_size is {self.batch_size} here and {wanted} in the StreamingDataset; "
                "expected the same, as a state counts the dataset's batches"
            )
        if not getattr(self, "in_order", True):
            raise ValueError("in_order is False; expected True, as a state is a place in the order")

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override] # torch's own iterator is no wider
        """Yield the batches of the next epoch, or of what a loaded state has left of one."""
        if isinstance(self.dataset, StreamingDataset):
            self._start = self.dataset.next_place
        self._batches, self.num_samples_yielded = 0, 0
        for batch in super().__iter__():
            self._batches += 1
            self.num_samples_yielded += self.batch_size or 1
            yield batch

    def state_dict(self) -> dict[str, Any] | None:
        """Return the place after the last batch that the loop got; None for other datasets."""
        dataset = self.dataset
        if not isinstance(dataset, StreamingDataset):
            return None
        if self._batches is None:
            return dataset.state_at(*dataset.next_place)
        epoch, start = self._start
        step = dataset.global_batch_size
        position = start + self._batches * step
        if self.drop_last and dataset.epoch_size - position < step:
            # The rest is no batch of this loader.
            return dataset.state_at(epoch + 1, 0)
        return dataset.state_at(epoch, position)

    def load_state_dict(self, obj: Mapping[str, Any]) -> None:
        """Let the next loop go on after a state.

        Raises:
            ValueError: It is a state of MosaicML's, or of another order.
        """
        if isinstance(self.dataset, StreamingDataset):
            self.dataset.load_state_dict(obj)
            self._batches = None
