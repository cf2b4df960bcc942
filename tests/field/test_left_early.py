"""Loops that were left early: a plain one continues and warns, a framework's begins an epoch.

Lightning stands in as the few lines of its loops and loaders that matter here; the tests of
the integrations run the real one.
"""

from __future__ import annotations

import itertools
import logging
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from torch.utils.data import DataLoader

from headrace.client import BatchLoader, NumpyDataset, RemoteDataset
from support.datasets import write_dataset
from support.running import server_of

SAMPLES, BATCHES = 40, 10
_COMBINED_LOADER = """
class CombinedLoader:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        self.iterator = iter(self.loader)
        return self

    def __next__(self):
        return next(self.iterator)
"""
_TRAINING = """
import itertools


class _TrainingEpochLoop:
    def __init__(self, trainer, batch_progress):
        self.trainer, self.batch_progress = trainer, batch_progress

    def run(self, combined, limit):
        for batch in itertools.islice(combined, limit):
            self.batch_progress.current.ready += 1
            yield batch
"""
_EVALUATION = """
import itertools


def run(combined, limit):
    yield from itertools.islice(combined, limit)
"""


class Lightning:
    """What Lightning's loops do with a loader."""

    def __init__(self, *, epoch: int = 0, step: int = 0) -> None:
        """Start, or resume after an epoch."""
        self.epochs = types.SimpleNamespace(current=types.SimpleNamespace(processed=epoch))
        self.step = step

    def train(self, loader: object, *, limit: int, done: int = 0) -> list[list[int]]:
        """Run one epoch, of which some batches were trained on before."""
        names = sys.modules
        progress = types.SimpleNamespace(current=types.SimpleNamespace(ready=done))
        trainer = types.SimpleNamespace(
            fit_loop=types.SimpleNamespace(epoch_progress=self.epochs), global_step=self.step
        )
        loop: Any = vars(names[f"{_PACKAGE}.loops.training_epoch_loop"])["_TrainingEpochLoop"]
        batches = loop(trainer, progress).run(iter(_combined(loader)), limit)
        seen = [batch["x"].tolist() for batch in batches]
        self.epochs.current.processed += 1
        self.step += len(seen)
        return seen

    def validate(self, loader: object, *, limit: int | None = None) -> int:
        """Return how many samples a validation sees."""
        run: Any = vars(sys.modules[f"{_PACKAGE}.loops.evaluation_loop"])["run"]
        return sum(len(batch["x"]) for batch in run(iter(_combined(loader)), limit))


_PACKAGE = "lightning.pytorch"


def _combined(loader: object) -> Any:
    module = sys.modules[f"{_PACKAGE}.utilities.combined_loader"]
    return vars(module)["CombinedLoader"](loader)


@pytest.fixture
def lightning(monkeypatch: pytest.MonkeyPatch) -> type[Lightning]:
    """Modules of Lightning's names, which is what is recognised."""
    sources = {
        "utilities.combined_loader": _COMBINED_LOADER,
        "loops.training_epoch_loop": _TRAINING,
        "loops.evaluation_loop": _EVALUATION,
    }
    for name, source in sources.items():
        module = types.ModuleType(f"{_PACKAGE}.{name}")
        exec(source, vars(module))  # noqa: S102 - the texts above
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return Lightning


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of ten batches of four."""
    url = str(tmp_path_factory.mktemp("left") / "d")
    write_dataset(url, pa.table({"x": np.arange(SAMPLES)}), shard_samples=[SAMPLES])
    with server_of({"d": url}) as server:
        yield server.address


@pytest.fixture
def dataset(address: str) -> Iterator[RemoteDataset]:
    """Its batches."""
    with RemoteDataset(address, "d", batch_size=4, seed=3) as made:
        yield made


def _epoch(address: str, epoch: int) -> list[list[int]]:
    with RemoteDataset(address, "d", batch_size=4, seed=3) as whole:
        whole.seek(epoch)
        return [batch["x"].tolist() for batch in whole]


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


Loaders: dict[str, Callable[[RemoteDataset], Any]] = {
    "the dataset": lambda dataset: dataset,
    "a DataLoader": lambda dataset: DataLoader(dataset, batch_size=None),
    "a BatchLoader": BatchLoader,
    "workers": lambda dataset: BatchLoader(dataset, num_workers=1),
}


@pytest.mark.parametrize("loader", Loaders)
def test_lightnings_epochs_are_epochs(
    address: str, dataset: RemoteDataset, lightning: type[Lightning], loader: str
) -> None:
    """With ``limit_train_batches=3`` they have 3, 3, 3 and 3 batches, of an epoch each."""
    trainer, given = lightning(), Loaders[loader](dataset)

    seen = [trainer.train(given, limit=3) for _ in range(4)]

    assert [_epoch(address, epoch)[:3] for epoch in range(4)] == seen
    dataset.close()


@pytest.mark.parametrize("loader", ["the dataset", "a DataLoader"])
def test_the_sanity_check_takes_nothing_from_the_validation(
    dataset: RemoteDataset, lightning: type[Lightning], loader: str
) -> None:
    """Two batches before training, then each validation sees all samples."""
    trainer, given = lightning(), Loaders[loader](dataset)

    counts = [trainer.validate(given, limit=2), *(trainer.validate(given) for _ in range(2))]

    assert [8, SAMPLES, SAMPLES] == counts
    dataset.close()


def test_a_resumed_epoch_goes_on(
    address: str, dataset: RemoteDataset, lightning: type[Lightning]
) -> None:
    """From a state of the middle of Lightning's epoch, with the batches that it has left."""
    list(itertools.islice(dataset, 2))
    with RemoteDataset(address, "d", batch_size=4, seed=3) as resumed:
        resumed.load_state_dict(dataset.state_dict())

        trainer = lightning(epoch=0, step=2)
        seen = [trainer.train(resumed, limit=1, done=2), trainer.train(resumed, limit=3)]

    assert [_epoch(address, 0)[2:3], _epoch(address, 1)[:3]] == seen


def test_a_state_of_the_end_of_a_short_epoch_begins_the_next(
    address: str, dataset: RemoteDataset, lightning: type[Lightning]
) -> None:
    """As a run does that was not stopped there."""
    lightning().train(dataset, limit=3)
    with RemoteDataset(address, "d", batch_size=4, seed=3) as resumed:
        resumed.load_state_dict(dataset.state_dict())

        seen = lightning(epoch=1, step=3).train(resumed, limit=3)

    assert _epoch(address, 1)[:3] == seen


def test_a_move_by_hand_is_kept(
    address: str, dataset: RemoteDataset, lightning: type[Lightning]
) -> None:
    """A place that the user chose between two epochs of Lightning is where the next one starts."""
    trainer = lightning()
    trainer.train(dataset, limit=3)
    dataset.seek(5, 8)

    assert _epoch(address, 5)[2:5] == trainer.train(dataset, limit=3)


def test_a_state_that_lightning_did_not_keep_is_missed(
    dataset: RemoteDataset, lightning: type[Lightning], caplog: pytest.LogCaptureFixture
) -> None:
    """A DataLoader has no state in Lightning's checkpoint, so a resumed run begins at epoch 0."""
    loader = DataLoader(dataset, batch_size=None)

    lightning(epoch=2, step=20).train(loader, limit=3)

    (warning,) = _warnings(caplog)
    assert "Lightning continues after step 20, but 'd' starts at epoch 0" in warning
    assert "the dataset itself or a headrace.client.BatchLoader" in warning


Makers: dict[str, Callable[[str], Any]] = {
    "RemoteDataset": lambda address: RemoteDataset(address, "d", batch_size=4, seed=3),
    "NumpyDataset": lambda address: NumpyDataset(address, "d", batch_size=4, seed=3),
}


@pytest.mark.parametrize("kind", Makers)
def test_a_plain_loop_continues_and_says_so_once(
    address: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be meant, and it may be a validation that misses samples."""
    with Makers[kind](address) as read:
        seen = [[batch["x"].tolist() for batch in itertools.islice(read, 3)] for _ in range(4)]

    whole = _epoch(address, 0)
    assert [whole[:3], whole[3:6], whole[6:9], whole[9:]] == seen
    (warning,) = _warnings(caplog)
    assert "in the middle of epoch 0, at position 12" in warning
    assert "epochs='same'" in warning


def test_what_is_meant_is_not_warned_of(
    address: str, dataset: RemoteDataset, caplog: pytest.LogCaptureFixture
) -> None:
    """Whole epochs, a place moved to by hand, and a loop that repeats its epoch."""
    _ = list(dataset), list(dataset), list(itertools.islice(dataset, 3))
    dataset.seek(1, 8)
    list(dataset)
    with RemoteDataset(address, "d", batch_size=4, epochs="same") as validation:
        counts = [len(list(itertools.islice(validation, 3))) for _ in range(2)]

    assert [3, 3] == counts
    assert not _warnings(caplog)
