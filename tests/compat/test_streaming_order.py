"""What a MosaicML user gets after changing one import: which samples, on which rank, when.

Each test is a way to train on wrong samples without an error.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from torch.utils.data import DataLoader

from headrace.client import RemoteDataset
from headrace.compat.streaming import (
    MDSWriter,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
)
from support.datasets import write_dataset
from support.private import end_servers

SAMPLES = 50
BATCH = 12
"""Over all ranks; an epoch has four batches and two samples."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two datasets of MosaicML's format, and a place for private servers, which then end."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("mds")
        runtime = folder / "run"
        runtime.mkdir(mode=0o700)
        patch.setenv("XDG_RUNTIME_DIR", str(runtime))
        for name, first, count in (("a", 0, SAMPLES), ("b", 100, 30)):
            columns = {"x": "int", "s": "str"}
            with MDSWriter(out=str(folder / name), columns=columns, size_limit=400) as writer:
                for number in range(first, first + count):
                    writer.write({"x": number, "s": str(number)})
        yield folder
        end_servers(runtime)


@pytest.fixture(autouse=True)
def ranks(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Without a launcher's variables; a test sets its own."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return monkeypatch


def _loader(
    folder: Path, *, batch_size: int = BATCH, drop_last: bool = False, **options: Any
) -> StreamingDataLoader:
    given = {"local": str(folder / "a"), "shuffle": True, "shuffle_seed": 7, **options}
    dataset = StreamingDataset(batch_size=batch_size, **given)
    return StreamingDataLoader(dataset, batch_size=batch_size, drop_last=drop_last)


def _joined(parts: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(parts))


def _epoch(loader: DataLoader[Any]) -> list[list[int]]:
    return [batch["x"].tolist() for batch in loader]


def test_the_order_is_headraces_for_the_same_seed(folder: Path) -> None:
    """`shuffle_seed` is the seed, in each epoch, and another seed is another order."""
    loader = _loader(folder)
    seen = [_epoch(loader) for _ in range(2)]
    url = str(folder / "a")
    with RemoteDataset(None, url, batch_size=BATCH, seed=7, end="uneven", epochs=2) as dataset:
        wanted = [[batch.to_numpy()["x"].tolist() for batch in dataset] for _ in range(2)]

    assert wanted == seen
    assert seen[0] != seen[1]
    assert seen[0] != _epoch(_loader(folder, shuffle_seed=8))
    assert list(range(SAMPLES)) == sorted(_joined(seen[1]))
    assert (SAMPLES, 5) == (len(loader.dataset), len(loader))  # type: ignore[arg-type]


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_the_same_global_batches(
    folder: Path, ranks: pytest.MonkeyPatch, world_size: int
) -> None:
    """All have as many samples as `len` says, and together those of one rank, with few repeats."""
    wanted = _epoch(_loader(folder))
    ranks.setenv("WORLD_SIZE", str(world_size))
    seen = []
    for rank in range(world_size):
        ranks.setenv("RANK", str(rank))
        loader = _loader(folder, batch_size=BATCH // world_size)
        seen.append(_epoch(loader))
        assert len(loader) == len(seen[-1])
        assert len(loader.dataset) == len(_joined(seen[-1]))  # type: ignore[arg-type]

    joined = [_joined(parts) for parts in zip(*seen, strict=True)]
    assert wanted[:-1] == joined[:-1]
    # A rank without a sample of the last batch repeats one of its own.
    assert set(wanted[-1]) <= set(joined[-1]) <= set(range(SAMPLES))
    assert len(joined[-1]) < len(wanted[-1]) + world_size


def test_replicas_get_the_same_samples(folder: Path, ranks: pytest.MonkeyPatch) -> None:
    """Two consecutive ranks of four."""
    ranks.setenv("WORLD_SIZE", "4")
    seen = []
    for rank in range(4):
        ranks.setenv("RANK", str(rank))
        seen.append(_epoch(_loader(folder, batch_size=BATCH // 2, replication=2)))

    assert (seen[0], seen[2]) == (seen[1], seen[3])
    assert seen[0] != seen[2]


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_state_goes_on_after_each_batch(folder: Path, streams: int, *, shuffle: bool) -> None:
    """Of the first two epochs; nothing is lost or repeated, with one stream and with two."""
    given: dict[str, Any] = {"shuffle": shuffle}
    if streams == 2:
        given |= {"local": None}
    parts: list[dict[str, Any]] = [{"local": str(folder / "a")}]
    parts += [{"local": str(folder / "b"), "choose": 17}]

    def made() -> StreamingDataLoader:
        more: dict[str, Any] = {}
        if streams == 2:
            more["streams"] = [Stream(**part) for part in parts]
        return _loader(folder, **given, **more)

    undisturbed = made()
    states, wanted = [undisturbed.state_dict()], []
    for _ in range(3):
        for batch in undisturbed:
            wanted.append(batch["x"].tolist())
            states.append(undisturbed.state_dict())
    for at in range(0, len(wanted) - 2, 3):
        resumed = made()
        resumed.load_state_dict(json.loads(json.dumps(states[at])))
        seen: list[list[int]] = []
        while len(seen) < len(wanted) - at:
            before = len(seen)
            seen += _epoch(resumed)
            assert before < len(seen), "an epoch without a batch"
        assert wanted[at:] == seen[: len(wanted) - at]


def test_a_state_of_two_ranks_goes_on_with_three(folder: Path, ranks: pytest.MonkeyPatch) -> None:
    """The same global batches; the state of any rank will do."""
    wanted = _epoch(_loader(folder))
    ranks.setenv("WORLD_SIZE", "2")
    ranks.setenv("RANK", "1")
    first = _loader(folder, batch_size=BATCH // 2)
    for _ in zip(range(2), first, strict=False):
        pass
    state = first.state_dict()
    ranks.setenv("WORLD_SIZE", "3")
    parts = []
    for rank in range(3):
        ranks.setenv("RANK", str(rank))
        then = _loader(folder, batch_size=BATCH // 3)
        then.load_state_dict(state or {})
        parts.append(_epoch(then))

    assert wanted[2:4] == [_joined(each) for each in zip(*parts, strict=True)][:2]


def test_a_dropped_rest_is_no_epoch(folder: Path) -> None:
    """At the end of an epoch of whole batches, a state is the start of the next one."""
    loader = _loader(folder, drop_last=True)
    assert 4 == len(_epoch(loader)) == len(loader)
    resumed = _loader(folder, drop_last=True)
    resumed.load_state_dict(loader.state_dict() or {})

    assert _epoch(loader) == _epoch(resumed)


def test_an_epoch_left_early_is_over(folder: Path) -> None:
    """As with MosaicML's: the next `iter` is the next epoch."""
    loader, whole = _loader(folder), _loader(folder)
    for _ in loader:
        break
    _epoch(whole)

    assert _epoch(whole) == _epoch(loader)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"shuffle_seed": 8}, "shuffle_seed"),
        ({"shuffle": False}, "shuffle"),
        ({"batch_size": 6}, "global_batch_size"),
        ({"local": "b"}, "streams"),
        ({"epoch_size": 40}, "streams"),
        ({"shuffle_block_size": 10}, "shuffle_block_size"),
    ],
)
def test_a_state_of_another_order_is_refused(
    folder: Path, change: dict[str, Any], word: str
) -> None:
    """By the name of what differs; so is one of MosaicML's own."""
    state = _loader(folder).state_dict()
    change = {k: str(folder / v) if k == "local" else v for k, v in change.items()}
    other = _loader(folder, **change)

    with pytest.raises(ValueError, match=f"saved with {word} "):
        other.load_state_dict(state or {})
    with pytest.raises(ValueError, match="MosaicML Streaming counts samples in another order"):
        other.load_state_dict({"epoch": 0, "sample_in_epoch": 24, "num_canonical_nodes": 1})


class _Neighbours(StreamingDataset):
    def __getitem__(self, at: Any) -> Any:
        if not isinstance(at, int):
            return super().__getitem__(at)
        sample = super().__getitem__(at)
        return {"x": 2 * sample["x"], "other": super().__getitem__((at + 1) % SAMPLES)["x"]}


def test_an_overridden_getitem_gets_each_sample_in_turn(folder: Path) -> None:
    """With its id, by which it may also read others."""
    dataset = _Neighbours(local=str(folder / "a"), batch_size=4, shuffle=True)
    seen = list(dataset)

    assert sorted(sample["x"] for sample in seen) == [2 * number for number in range(SAMPLES)]
    assert all(each["other"] == (each["x"] // 2 + 1) % SAMPLES for each in seen)
    assert [{"x": 98, "other": 0}, {"x": 6, "other": 4}] == dataset[[-1, 3]]
    with pytest.raises(IndexError):
        dataset[SAMPLES]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ([{"repeat": 2}, {"choose": 10}], (100, 10)),
        ([{"proportion": 3}, {"proportion": 1}], (60, 20)),
        ([{}, {}], (50, 30)),
        ([{"choose": 0}, {}], (0, 30)),
    ],
)
@pytest.mark.parametrize("shuffle", [True, False])
def test_amounts_of_streams(
    folder: Path, given: list[dict[str, Any]], wanted: tuple[int, int], *, shuffle: bool
) -> None:
    """Each epoch has exactly these, and none has come twice more often than another."""
    pairs = zip("ab", given, strict=True)
    streams = [Stream(local=str(folder / name), **amount) for name, amount in pairs]
    dataset = StreamingDataset(streams=streams, batch_size=8, shuffle=shuffle)
    drawn: Counter[int] = Counter()
    for _ in range(2):
        counts = Counter(sample["x"] for sample in dataset)
        drawn += counts
        late = sum(count for x, count in counts.items() if x >= 100)
        assert wanted == (counts.total() - late, late)
        for numbers in (range(SAMPLES), range(100, 130)):
            each = [drawn[number] for number in numbers]
            assert max(each) - min(each) <= 1
    assert sum(wanted) == len(dataset)
    assert wanted == tuple(stream.choose for stream in streams)


@pytest.mark.parametrize("method", ["stratified", "per_stream", "device_per_stream"])
def test_batches_are_composed_as_asked(
    folder: Path, ranks: pytest.MonkeyPatch, method: str
) -> None:
    """On the second of two ranks: five and three samples of eight, or eight of one."""
    ranks.setenv("WORLD_SIZE", "2")
    batches = []
    for rank in range(2):
        ranks.setenv("RANK", str(rank))
        streams = [Stream(local=str(folder / name)) for name in "ab"]
        dataset = StreamingDataset(
            streams=streams, batching_method=method, shuffle=True, batch_size=8
        )
        batches.append(_epoch(StreamingDataLoader(dataset, batch_size=8)))
        assert len(dataset) == sum(map(len, batches[-1]))
    late = [[sum(x >= 100 for x in batch) for batch in part] for part in batches]

    if method == "stratified":
        assert {3} == set(late[0] + late[1])
    else:
        assert {0, 8} == set(late[0] + late[1])
        assert (method == "per_stream") == (late[0] == late[1])


def test_a_fixed_sample_is_the_same_in_each_epoch(folder: Path) -> None:
    """And a balanced one is not."""
    seen = {}
    for method in ("fixed", "balanced"):
        loader = _loader(folder, epoch_size=20, sampling_method=method)
        seen[method] = [set(_joined(_epoch(loader))) for _ in range(2)]

    assert seen["fixed"][0] == seen["fixed"][1]
    assert not seen["balanced"][0] & seen["balanced"][1]
    loader = _loader(folder, epoch_size=70, sampling_method="fixed")
    first, then = (Counter(_joined(_epoch(loader))) for _ in range(2))
    assert (first, 70) == (then, first.total())


def test_headraces_own_shards_are_read_with_their_nulls(folder: Path) -> None:
    """A null is None; numbers, texts and arrays have NumPy's and Python's types."""
    table = pa.table({"x": [1, None, 3], "t": ["a", None, "c"], "v": [[1.0], [], [2.0, 3.0]]})
    write_dataset(str(folder / "own"), table, shard_samples=[2, 1])
    samples = list(StreamingDataset(remote=str(folder / "own"), batch_size=2))

    assert [1, None, 3] == [sample["x"] for sample in samples]
    assert ["a", None, "c"] == [sample["t"] for sample in samples]
    assert [[1.0], [], [2.0, 3.0]] == [sample["v"].tolist() for sample in samples]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"shuffle_algo": "mine"}, "shuffle algorithm: mine"),
        ({"batching_method": "mine"}, "batching method: mine"),
        ({"stream_name": "mine"}, "stream_name is 'mine'"),
        ({"shuffle_seed": -1}, "`shuffle_seed` is -1"),
        ({"cache_limit": "1b"}, "Minimum cache usage"),
        ({"streams": [Stream(local="x")]}, "not both"),
        ({"remote": "headrace://x", "cache_limit": 5}, "headrace://host:port/name"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    folder: Path, given: dict[str, Any], words: str
) -> None:
    """Before anything is read."""
    with pytest.raises(ValueError, match=words):
        _loader(folder, **given)


def test_a_loader_with_other_batches_is_refused(folder: Path) -> None:
    """Its states would count other batches than the dataset has."""
    dataset = StreamingDataset(local=str(folder / "a"), batch_size=4)
    with pytest.raises(ValueError, match="batch_size is 8 here and 4"):
        StreamingDataLoader(dataset, batch_size=8)
    with pytest.raises(ValueError, match="Please pass `batch_size`"):
        next(iter(StreamingDataset(local=str(folder / "a"))))


def test_forked_workers_read_what_the_loop_would(folder: Path) -> None:
    """Two and three workers of DataLoader, seeded alike in each epoch, kept or not; a state too.

    And the program of the page, as it is printed.
    """
    page = Path(__file__).parents[2] / "docs" / "compat.md"
    job = [sys.executable, str(Path(__file__).with_name("streaming_job.py")), str(folder)]
    job.append(str(page))
    done = subprocess.run(job, capture_output=True, text=True, timeout=200, check=False)
    assert 0 == done.returncode, done.stderr[-3000:]
    found = json.loads(done.stdout)
    loader = _loader(folder, batch_size=4)
    wanted = [_epoch(loader) for _ in range(3)]

    assert list(range(1000)) == found["page"]
    assert wanted == found["fresh"]
    assert wanted == found["kept"]
    assert wanted[1][3:] == found["resumed"]
    sequence = _loader(
        folder,
        batch_size=4,
        local=None,
        shuffle=False,
        streams=[Stream(local=str(folder / "a")), Stream(local=str(folder / "b"), choose=7)],
    )
    assert [_epoch(sequence) for _ in range(2)] == found["in sequence"]
