"""Datasets of the Hugging Face Hub: what is read is of one commit, however branches move."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.client import RemoteDataset
from headrace.errors import (
    BadArgumentError,
    ConfigurationError,
    HeadraceError,
    NotADatasetError,
    ObjectNotFoundError,
    StoreRefusedError,
    StoreUnavailableError,
)
from headrace.server import DatasetConfig
from headrace.storage import RetryPolicy, StoreOptions, open_dataset
from headrace.storage.store.foreign.hub import HubPlace, hub_place
from support.hub import Hub, hub
from support.rescaling import rescaled
from support.running import server_of

_URL = "hf://datasets/o/n"


@pytest.fixture
def served() -> Iterator[Hub]:
    """A Hub with a dataset of three files on main, and another form of it."""
    with hub() as running:
        running.push({f"data/train-{part}.parquet": _file(part * 10) for part in range(3)})
        running.push({"default/train/0000.parquet": _file(500)}, ref="refs/convert/parquet")
        yield running


def _file(first: int) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": range(first, first + 10)}), sink, row_group_size=5)
    return sink.getvalue().to_pybytes()


def _options(served: Hub, **more: object) -> StoreOptions:
    retry = RetryPolicy(attempts=1)
    return StoreOptions(retry=retry, fsspec={"endpoint": served.address, "token": "thorns", **more})  # type: ignore[dict-item]


def _numbers(served: Hub, url: str = _URL) -> list[int]:
    with open_dataset(url, options=_options(served)) as dataset:
        blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
    return [int(number) for block in blocks for number in block.column("x").to_numpy()]


def test_a_dataset_is_read_at_a_revision(served: Hub) -> None:
    """A branch or a commit, after the name or at the end."""
    assert list(range(30)) == _numbers(served, f"{_URL}/data@main")
    assert list(range(30)) == _numbers(served, f"{_URL}@{served.refs['main']}/data")
    assert list(range(500, 510)) == _numbers(served, f"{_URL}/default/train@refs/convert/parquet")


def test_a_branch_that_moves_moves_nobody(served: Hub) -> None:
    """What was opened stays at its commit; what is opened later is at the new one."""
    with open_dataset(_URL, options=_options(served)) as dataset:
        old = served.refs["main"]
        served.push({"data/train-0.parquet": _file(900)})
        found = [dataset.read_block(block).column("x")[0].as_py() for block in range(6)]

        assert [0, 5, 10, 15, 20, 25] == found
        assert old in dataset.url
    assert list(range(900, 910)) == _numbers(served)
    with pytest.raises(NotADatasetError, match="has fingerprint"):
        open_dataset(_URL, options=_options(served), fingerprint=dataset.fingerprint)
    again = f"{_URL}@{old}"
    with open_dataset(again, options=_options(served), fingerprint=dataset.fingerprint) as same:
        assert 30 == same.sample_count


def test_ranks_share_one_download_of_a_range(served: Hub) -> None:
    """Sixteen ranks and two epochs, a server whose cache holds it all."""
    config = DatasetConfig(url=_URL, store=_options(served))
    with server_of({"d": config}) as server:
        served.downloads.clear()
        for rank in range(16):
            loop = RemoteDataset(server.address, "d", batch_size=1, rank=rank, world_size=16)
            with closing(loop) as dataset:
                assert [1, 1] == [sum(batch.sample_count for batch in dataset) for _ in range(2)]

    # The footers lie behind byte 200, and threads that begin together read one twice.
    starts = [(name, int(asked[6:].partition("-")[0])) for name, asked in served.downloads]
    blocks = [one for one in starts if one[1] < 200]
    assert 6 == len(blocks) == len(set(blocks))


def test_an_epoch_goes_on_at_its_commit_with_other_ranks(served: Hub) -> None:
    """A split of it, by another server."""
    card = _card("- {config_name: en, data_files: [{split: train, path: 'data/*'}]}\n")
    files = {f"data/{part}.parquet": _file(part * 10) for part in range(5)}
    commit = served.push({"README.md": card, "x.parquet": _file(90), **files})
    config = DatasetConfig(url=f"{_URL}/en/train@{commit}", store=_options(served))
    served.push({"data/0.parquet": _file(900)})

    assert list(range(50)) == sorted(rescaled(config))


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (401, StoreRefusedError, "HF_TOKEN"),
        (403, StoreRefusedError, "accept the dataset's conditions"),
        (503, StoreUnavailableError, "cannot be asked"),
    ],
)
def test_answers_of_the_hub_are_told_apart(
    served: Hub, status: int, kind: type[HeadraceError], said: str
) -> None:
    """What must be set, and where; the token is in no message."""
    served.status = status

    with pytest.raises(kind, match=said) as error:
        _numbers(served)
    assert "thorns" not in f"{error.value} {error.value.metadata}"


def test_what_is_not_there_is_named(served: Hub) -> None:
    """A revision, a repository, and what names neither."""
    with pytest.raises(ObjectNotFoundError, match="no revision 'v9'"):
        _numbers(served, f"{_URL}@v9")
    with pytest.raises(StoreRefusedError, match="no dataset o/other, or it is private"):
        _numbers(served, "hf://datasets/o/other")
    for url in ("hf://datasets/o", "hf://datasets/o/n@a@b", "hf://datasets/"):
        with pytest.raises(BadArgumentError, match="names no dataset of the Hub"):
            _numbers(served, url)


def _card(configs: str) -> bytes:
    return f"---\nlicense: mit\nconfigs:\n{configs}---\n# A dataset\n".encode()


_CARD = """\
- config_name: en
  data_files:
  - split: train
    path: [data/train-0.parquet, "more/*.parquet"]
  - split: text
    path: notes/*.csv
- config_name: de
  data_dir: german
- config_name: gone
  data_files: data/gone.parquet
"""


def _push(served: Hub, card: str = _CARD) -> None:
    german = {f"german/{name}.parquet": _file(700) for name in ("train-1", "dev_1")}
    other = {"data/train-0.parquet": _file(0), "data/train-1.parquet": _file(10)}
    more = {"more/a.parquet": _file(20), "more/.b.parquet": _file(30), "notes/a.csv": b"x\n1\n"}
    served.push({"README.md": _card(card), **german, **other, **more})


def test_a_split_has_the_files_that_the_card_states(served: Hub) -> None:
    """By patterns, or in a folder by their names; at a commit, by whose URL it is found again."""
    _push(served)
    with open_dataset(f"{_URL}/en/train", options=_options(served)) as dataset:
        url, fingerprint = dataset.url, dataset.fingerprint
    old = [*range(10), *range(20, 30)]

    assert old == _numbers(served, f"{_URL}/en/train")
    assert list(range(700, 710)) == _numbers(served, f"{_URL}/de/validation")
    served.push({"README.md": _card(_CARD), "data/train-0.parquet": _file(900)})
    assert list(range(900, 910)) == _numbers(served, f"{_URL}/en/train@main")
    assert old == _numbers(served, url)
    open_dataset(url, options=_options(served), fingerprint=fingerprint).close()


def test_without_a_card_the_names_of_files_say_which_splits_there_are(served: Hub) -> None:
    """The configuration is called default then; a folder of that name comes first."""
    served.push({"data/test-00000-of-00001.parquet": _file(0), "x.parquet": _file(1)})
    assert list(range(10)) == _numbers(served, f"{_URL}/default/test")
    served.push({"train/a.parquet": _file(0), "test/b.parquet": _file(10)})
    assert list(range(10, 20)) == _numbers(served, f"{_URL}/default/test")
    served.push({"default/test/a.parquet": _file(50), "default/train/b.parquet": _file(0)})
    assert list(range(50, 60)) == _numbers(served, f"{_URL}/default/test")


@pytest.mark.parametrize(
    ("path", "kind", "said"),
    [
        ("en/test", NotADatasetError, "there are en/train, en/text, de/train, de/validation"),
        ("fr/train", NotADatasetError, "no files of a split 'train' of a configuration 'fr'"),
        ("en/text", ConfigurationError, r"are .csv .*@refs/convert/parquet"),
        ("more/a.csv", NotADatasetError, "no file more/a.csv"),
    ],
)
def test_what_is_no_split_is_said_with_what_there_is(
    served: Hub, path: str, kind: type[HeadraceError], said: str
) -> None:
    """Neither a folder nor a split, or a split of files that are not read."""
    _push(served, _CARD.partition("- config_name: gone")[0])

    with pytest.raises(kind, match=said):
        _numbers(served, f"{_URL}/{path}")


def test_a_card_that_cannot_be_followed_is_refused(served: Hub) -> None:
    """A missing file, places elsewhere, what is no YAML; folders can be read all the same."""
    _push(served)
    with pytest.raises(NotADatasetError, match=r"names the file 'data/gone.parquet', which is not"):
        _numbers(served, f"{_URL}/gone/train")
    for wrong in ("{", "- a", "- {config_name: a, data_files: /etc/passwd}"):
        _push(served, f"{wrong}\n")
        with pytest.raises(ConfigurationError, match="the configs of its card are not understood"):
            _numbers(served, f"{_URL}/en/train")
        assert list(range(10)) == _numbers(served, f"{_URL}/data/train-0.parquet")


def test_a_folder_that_is_also_another_split_is_refused(served: Hub) -> None:
    """Nobody could tell which of the two was meant; a folder of the split's own files is both."""
    card = _card("- {config_name: en, data_files: [{split: train, path: 'en/train/*.parquet'}]}\n")
    served.push({"README.md": card, "en/train/a.parquet": _file(0), "en/train/notes.txt": b""})
    assert list(range(10)) == _numbers(served, f"{_URL}/en/train")
    served.push({"README.md": card, "en/train/a.parquet": _file(0), "en/train/b/c.parquet": b""})
    with pytest.raises(ConfigurationError, match="is a folder, and a split of other files"):
        _numbers(served, f"{_URL}/en/train")


def test_places_have_one_form() -> None:
    """That of huggingface_hub, whose references with slashes are quoted."""
    place = hub_place("hf://datasets/o/n/a/b@refs/pr/7")

    assert HubPlace("o/n", "a/b", "refs/pr/7") == place == hub_place(place.url)
    assert "hf://datasets/o/n@refs%2Fpr%2F7/a/b" == place.url
