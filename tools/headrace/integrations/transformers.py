"""Hugging Face Trainer: datasets of headrace, whose place its own checkpoints keep.

Trainer prepares each loader by Accelerate, which would deal one rank's batches to all ranks and
read one ahead of the loop; and on a resume it reads and drops as many batches as came before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.client import Batch, BatchLoader, RemoteDataset
from headrace.errors import BadArgumentError
from headrace.integrations.sources import (
    begin_epoch,
    check_evaluation,
    evaluation_set,
    remote,
    training_set,
)

try:
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers import trainer as _theirs
    from transformers.trainer_callback import ExportableState
except ImportError as _error:  # pragma: no cover - tests have it
    raise ImportError(
        "headrace.integrations.transformers needs Hugging Face's Trainer, which is not installed "
        "here: pip install 'transformers[torch]'"
    ) from _error

__all__ = ["RemoteTrainer", "remote"]

_skip_first_batches = _theirs.skip_first_batches


class RemoteTrainer(Trainer):
    """A Trainer whose ``train_dataset`` and ``eval_dataset`` may be `remote`.

    ``train(resume_from_checkpoint=...)`` goes on with the next sample, on any number of ranks. The
    place lies in the checkpoint's ``trainer_state.json``. What the server sends goes to the model:
    choose columns by ``columns=``, rename or combine them by ``transform=``. ``evaluate`` counts
    each sample once, in batches of ``per_device_eval_batch_size``.

    Other datasets are read as in a Trainer. For another subclass of Trainer, inherit from both:
    ``class Mine(RemoteTrainer, Seq2SeqTrainer)``.
    """

    def __init__(self, model: Any, args: TrainingArguments, **kwargs: Any) -> None:
        """Take what a Trainer takes; datasets may also be `RemoteDataset` of this rank.

        Those for evaluation need ``end="pad"``, ``epochs="same"`` and the batch size of ``args``.
        """
        ranks = {"rank": args.process_index, "world_size": args.world_size}
        if callable(source := kwargs.get("train_dataset")):
            kwargs["train_dataset"] = training_set(source, **ranks)
        found, size = kwargs.get("eval_dataset"), args.eval_batch_size
        if isinstance(found, dict):
            made = {name: _evaluation(each, size, ranks) for name, each in found.items()}
            kwargs["eval_dataset"] = made
        else:
            kwargs["eval_dataset"] = _evaluation(found, size, ranks)
        super().__init__(model, args, **kwargs)
        if isinstance(self.train_dataset, RemoteDataset):
            self.add_callback(HeadracePlace(self.train_dataset))

    def get_train_dataloader(self) -> Any:
        if not isinstance(self.train_dataset, RemoteDataset):
            return super().get_train_dataloader()
        loader = _EpochLoader(self.train_dataset, num_workers=self.args.dataloader_num_workers)
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, HeadracePlace):
                callback.loader = loader
        return loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        found = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(found, str) and isinstance(self.eval_dataset, dict):
            found = self.eval_dataset[found]
        if isinstance(found, RemoteDataset):
            return self._evaluated(found)
        return super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        if isinstance(test_dataset, RemoteDataset):
            return self._evaluated(test_dataset)
        return super().get_test_dataloader(test_dataset)

    def num_examples(self, dataloader: Any) -> int:
        """Return how many samples all ranks read in an epoch, at most."""
        if not isinstance(dataloader, BatchLoader):
            return int(super().num_examples(dataloader))
        size = self.args.train_batch_size
        if not isinstance(dataloader, _EpochLoader):
            size = self.args.eval_batch_size
        ranks: int = self.args.world_size
        return len(dataloader) * int(size) * ranks

    def _evaluated(self, dataset: RemoteDataset[Any]) -> BatchLoader[Any]:
        check_evaluation(dataset)
        return BatchLoader(dataset)


def _evaluation(found: Any, batch_size: int, ranks: dict[str, int]) -> Any:
    return evaluation_set(found, batch_size=batch_size, **ranks) if callable(found) else found


class HeadracePlace(TrainerCallback, ExportableState):
    """Carries a dataset's state in ``trainer_state.json``, under the name of this class."""

    def __init__(self, dataset: RemoteDataset[Any] | None = None) -> None:
        """Remember whose."""
        self._dataset = dataset
        self.loader: _EpochLoader | None = None

    def state(self) -> dict[str, Any]:
        """Return what Trainer writes into a checkpoint."""
        assert self._dataset is not None
        return {"args": {}, "attributes": {"place": self._dataset.state_dict()}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Go on from the checkpoint's place, if Trainer has loaded one.

        Raises:
            BadArgumentError: The checkpoint has none.
        """
        del args, control, kwargs
        if not state.global_step:
            return
        saved = state.stateful_callbacks.get(type(self).__name__)
        saved = saved[-1] if isinstance(saved, list) and saved else saved
        place = saved["attributes"].get("place") if isinstance(saved, dict) else None
        if place is None:
            raise BadArgumentError(
                f"the checkpoint was saved after step {state.global_step} and does not say where "
                f"the data was: its trainer_state.json has no {type(self).__name__!r}; resume from "
                "a checkpoint of a RemoteTrainer, or start without resume_from_checkpoint",
                field="resume_from_checkpoint",
            )
        assert self._dataset is not None
        assert self.loader is not None
        self._dataset.load_state_dict(place)
        self.loader.is_resumed = True


class _EpochLoader(BatchLoader):
    """Reads an epoch of Trainer's in each loop.

    Attributes:
        is_resumed: Whether the next loop is the rest of an epoch that a checkpoint was saved in.
    """

    is_resumed = False

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override] # torch says its private class
        if not self.is_resumed and isinstance(self.dataset, RemoteDataset):
            begin_epoch(self.dataset)
        self.is_resumed = False
        return super().__iter__()


def _skipped(dataloader: Any, num_batches: int = 0) -> Any:
    """Skip nothing of a loader that is where the checkpoint was, and of others what they ask."""
    if isinstance(dataloader, _EpochLoader):
        return dataloader
    return _skip_first_batches(dataloader, num_batches)


_theirs.skip_first_batches = _skipped
