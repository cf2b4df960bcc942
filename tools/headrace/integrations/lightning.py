"""Lightning: a DataModule whose place in the data travels in Lightning's own checkpoints.

Lightning loads the state of a loader only if a checkpoint lies inside an epoch; of one that was
saved at an epoch's end, training would begin with epoch 0 again. It always loads the state of a
DataModule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.client import BatchLoader, RemoteDataset
from headrace.errors import BadArgumentError
from headrace.integrations.sources import Source, evaluation_set, remote, training_set

try:
    from lightning.pytorch import LightningDataModule
    from lightning.pytorch.loops.loop import _Loop
except ImportError as _error:  # pragma: no cover - tests have it
    raise ImportError(
        "headrace.integrations.lightning needs Lightning, which is not installed here: "
        "pip install lightning"
    ) from _error

__all__ = ["RemoteData", "remote"]

_Loader = RemoteDataset[Any] | BatchLoader[Any]


class RemoteData(LightningDataModule):
    """Feed a Trainer from headrace, and resume exactly with ``fit(..., ckpt_path=...)``.

    Datasets are made where Lightning knows the ranks. Each epoch of Lightning is an epoch of the
    data, also if ``limit_train_batches`` leaves it early. Validation and tests see each sample
    once, in batches of one size on every rank; `Batch.is_pad` marks the repeats that fill up the
    last one.

    Examples:
        >>> data = RemoteData(remote(address, "numbers", batch_size=4))
    """

    def __init__(
        self,
        train: Source[Any],
        val: Source[Any] | None = None,
        test: Source[Any] | None = None,
        predict: Source[Any] | None = None,
        *,
        workers: int = 0,
    ) -> None:
        """Remember what to read.

        Args:
            train: Makes the dataset to train on, such as ``remote(target, name,
                sharding=Sharding(global_batch_size=256))``; called with ``rank`` and
                ``world_size``.
            val: The same for validation; called also with ``shuffle=False``, ``end="pad"`` and
                ``epochs="same"``.
            test: The same for ``Trainer.test``.
            predict: The same for ``Trainer.predict``.
            workers: Worker processes that receive training batches, >= 0.
        """
        super().__init__()
        self._sources = {"train": train, "val": val, "test": test, "predict": predict}
        self._workers = workers
        self._made: dict[str, _Loader] = {}
        self._saved: Mapping[str, object] | None = None

    def setup(self, stage: str) -> None:
        if stage == "fit" and not self.trainer.global_step and "train" in self._made:
            # Another run begins: with the first epoch, and perhaps with other ranks.
            self._made.pop("train").close()

    def train_dataloader(self) -> _Loader:
        if "train" not in self._made:
            source = self._sources["train"]
            assert source is not None
            dataset = training_set(source, **self._ranks())
            workers = self._workers
            loader = BatchLoader(dataset, num_workers=workers) if workers else dataset
            self._made["train"] = loader
        loader = self._made["train"]
        if self._saved is not None:
            loader.load_state_dict(self._saved)
            self._saved = None
            _leave_finished_epoch(self.trainer.fit_loop)
        elif self.trainer.fit_loop.is_resuming and self.trainer.global_step:
            raise BadArgumentError(
                f"the checkpoint was saved after step {self.trainer.global_step} and does not say "
                f"where the data was: it has no {type(self).__qualname__!r}, or none that has been "
                "trained on; resume from a checkpoint of a run that read its data through "
                f"{type(self).__qualname__}, or start without ckpt_path",
                field="ckpt_path",
            )
        return loader

    def val_dataloader(self) -> _Loader | list[_Loader]:
        return self._evaluated("val")

    def test_dataloader(self) -> _Loader | list[_Loader]:
        return self._evaluated("test")

    def predict_dataloader(self) -> _Loader | list[_Loader]:
        return self._evaluated("predict")

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the last batch that was trained on, the same on every rank."""
        return {"train": self._made["train"].state_dict()} if "train" in self._made else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there when training starts."""
        self._saved = state_dict.get("train")

    def teardown(self, stage: str) -> None:
        """Drop connections and worker processes; the next loop continues."""
        del stage
        for loader in self._made.values():
            loader.close()

    def _evaluated(self, name: str) -> _Loader | list[_Loader]:
        source = self._sources[name]
        if source is None:
            return []
        if name not in self._made:
            self._made[name] = evaluation_set(source, **self._ranks())
        return self._made[name]

    def _ranks(self) -> dict[str, int]:
        """Return rank and number of those that have samples of their own."""
        found = self.trainer.distributed_sampler_kwargs or {"rank": 0, "num_replicas": 1}
        return {"rank": found["rank"], "world_size": found["num_replicas"]}


def _leave_finished_epoch(fit_loop: Any) -> None:
    """Begin the next epoch if the checkpoint was saved when one was over.

    With ``max_steps``, Lightning takes such a checkpoint for one inside the epoch, trains on one
    batch more, and ends the epoch again.
    """
    epochs = fit_loop.epoch_progress.current
    if epochs.ready == epochs.started == epochs.processed:
        # The property of the fit loop itself does not let go of a run that counts steps.
        _Loop.restarting.fset(fit_loop, False)
