"""Tests of texts that a server tokenizes: packed into rows, or as a stage.

How it could give wrong samples, hang or let somebody in, and what holds against each:

1. Rows that differ from those of tokens that were made before: `test_rows_are_those_of_tokens`.
2. Tokens that depend on threads, on what is in memory, on the world size or on a resume:
   `test_any_server_and_world_makes_the_same`.
3. Lengths of another tokenizer: `test_another_tokenizer_is_refused`, `test_a_length_that_lies`.
4. A run that goes on with other tokens: `test_a_run_keeps_its_tokenizer`.
5. A caller who names a file: `test_callers_name_no_files`.
6. A text that takes all memory or time, or that the tokenizer fails at: `test_texts_that_fail`,
   `test_time_ends_a_batch`, and `test_row_pool.py` for cancels.
7. Documents of two datasets of a mixture that have one id: `test_rows_of_texts_are_mixed`.
8. Texts that are null or empty: among the texts of every test.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.cli.stored.row_counter import row_counter
from headrace.client import (
    Cast,
    Mixture,
    MixtureEntry,
    NumpyDataset,
    Order,
    PrivateServer,
    RemoteDataset,
    Selection,
    Sharding,
    Tokenize,
    Transport,
)
from headrace.errors import (
    BadArgumentError,
    ConfigurationError,
    StageFailedError,
    TokenDatasetChangedError,
    TokenSpecChangedError,
)
from headrace.server import Server, ServerConfig, start_server
from headrace.server.stages.texts import TextSettings
from headrace.storage import RowOptions, Tokenizer, index_packing, load_tokenizer
from support.datasets import write_dataset
from support.packed import of_other_dataset
from support.running import server_of
from support.tokenizer_files import bpe_file, random_texts, word_file

_COUNT = 150
_LENGTH = 64
_OPTIONS = RowOptions(_LENGTH, cut=20, bos=0, eos=1, fill=5)
_IDS: dict[str, Any] = {"order": Order(with_ids=True)}
_PARTS = ("", ".labels", ".positions", ".documents", ".boundaries", ".samples")


def _texts() -> list[str | None]:
    long = " ".join(random_texts(30, seed=4))
    texts: list[str | None] = [*random_texts(_COUNT - 3, seed=3), long, "", None]
    return texts


def _write_texts(url: str, texts: list[str | None]) -> str:
    numbers = pa.array(range(len(texts)), pa.int64())
    table = pa.table({"text": pa.array(texts, pa.string()), "number": numbers})
    write_dataset(url, table, shard_samples=[len(texts)])
    return url


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tokenizers; texts, with their lengths; and their tokens, packed alike."""
    folder = tmp_path_factory.mktemp("texts")
    bpe_file(folder / "one.json")
    bpe_file(folder / "two.json", vocabulary=280)
    tokenizer = load_tokenizer(folder / "one.json")
    _write_texts(str(folder / "texts"), _texts())
    tokens = tokenizer.encode([(text or "").encode() for text in _texts()])
    table = pa.table({"text": pa.array(tokens, pa.list_(pa.int32()))})
    write_dataset(str(folder / "tokens"), table, shard_samples=[_COUNT])
    _index(folder / "texts", tokenizer)
    _index(folder / "tokens", None)
    return folder


def _index(url: Path, tokenizer: Tokenizer | None, options: RowOptions = _OPTIONS) -> Any:
    return index_packing(str(url), options, count_rows=row_counter(), tokenizer=tokenizer)


def _config(folder: Path, *tokenizers: str, **more: Any) -> ServerConfig:
    datasets = {name: str(folder / name) for name in ("texts", "tokens")}
    return ServerConfig(
        datasets=more.pop("datasets", datasets),
        listen="127.0.0.1:0",
        plugs=_tokenizers(*(f"{name}={folder / name}.json" for name in tokenizers)),
        **more,
    )


def _tokenizers(*stated: str) -> tuple[TextSettings]:
    return (TextSettings(tokenizers=stated),)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """A server that has both tokenizers."""
    with start_server(_config(folder, "one", "two")) as found:
        yield found


def _batches(server: Server, name: str | Selection, **options: Any) -> list[dict[str, Any]]:
    options = {"batch_size": 7, "seed": 5, "epochs": 1, "end": "uneven", **_IDS, **options}
    with RemoteDataset(server.address, name, **options) as dataset:
        return [_shown(batch) for batch in dataset]


def _shown(batch: Any) -> dict[str, Any]:
    found = {
        name: [None if row is None else np.asarray(row).tolist() for row in batch[name]]
        for name in batch
    }
    return {**found, "ids": np.asarray(batch.sample_ids).tolist()}


def _rows(batches: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {
        number: {name: batch[name][at] for name in batch}
        for batch in batches
        for at, number in enumerate(batch["ids"])
    }


def test_rows_are_those_of_tokens(server: Server) -> None:
    """To the element, in all columns, with marks, cuts and a document of several rows."""
    columns = [f"text{part}" for part in _PARTS]

    made = _rows(_batches(server, f"texts:{_LENGTH}", columns=columns))
    stored = _rows(_batches(server, f"tokens:{_LENGTH}", columns=columns))

    assert len(stored) > 20
    assert stored == made


def test_steps_go_on_with_rows(server: Server) -> None:
    """A cast, for one."""
    columns = ["text"]

    plain = _batches(server, f"texts:{_LENGTH}", columns=columns)
    cast = _batches(server, f"texts:{_LENGTH}", columns=columns, stages=[Cast("text", "int64")])

    assert plain == cast


@pytest.mark.parametrize("name", ["texts", f"texts:{_LENGTH}"])
def test_any_server_and_world_makes_the_same(folder: Path, server: Server, name: str) -> None:
    """Of one thread and a cache too small, after a resume with two ranks."""
    steps = [] if ":" in name else [Tokenize("text", "one")]
    whole = _batches(server, name, stages=steps)
    config = _config(folder, "one", stage_threads=1, cache_bytes=1 << 15)
    with start_server(config) as small:
        options: dict[str, Any] = {"seed": 5, "epochs": 1, "end": "uneven", "stages": steps, **_IDS}
        with RemoteDataset(small.address, name, batch_size=7, **options) as begun:
            start = [_shown(batch) for _, batch in zip(range(3), begun, strict=False)]
            state = begun.state_dict()
        ranks = []
        for rank in range(2):
            with RemoteDataset(
                server.address,
                name,
                rank=rank,
                world_size=2,
                sharding=Sharding(global_batch_size=7),
                **options,
            ) as dataset:
                dataset.load_state_dict(state)
                ranks.append([_shown(batch) for batch in dataset])

    joined = [
        {key: first.get(key, []) + second.get(key, []) for key in whole[0]}
        for first, second in zip(*ranks, strict=True)
    ]
    assert whole[:3] == start[:3]
    assert whole[3:] == joined


def test_the_step_makes_lists_of_tokens(folder: Path, server: Server) -> None:
    """Those that the library makes; null texts stay null."""
    tokenizer = load_tokenizer(folder / "one.json")
    texts = [(text or "").encode() for text in _texts()]
    for special in (False, True):
        made = tokenizer.encode(texts, special_tokens=special)
        expected: list[list[int] | None] = [each.tolist() for each in made]
        expected[-1] = None

        step = Tokenize("text", "one", special_tokens=special)
        rows = _rows(_batches(server, "texts", stages=[step]))

        assert expected == [rows[number]["text"] for number in range(_COUNT)]


def test_arrays_are_int32(server: Server) -> None:
    """What PyTorch's embeddings take."""
    with NumpyDataset(server.address, f"texts:{_LENGTH}", batch_size=4, epochs=1) as dataset:
        arrays = next(iter(dataset))

    assert arrays["text"].dtype == np.int32
    assert arrays["text"].shape == (4, _LENGTH)


def test_another_tokenizer_is_refused(folder: Path) -> None:
    """And none at all, with the digest of the one that the lengths were counted with."""
    digest = load_tokenizer(folder / "one.json").digest
    for tokenizers in ((), ("two",)):
        with start_server(_config(folder, *tokenizers)) as other:
            with pytest.raises(ConfigurationError, match=digest) as raised:
                _batches(other, f"texts:{_LENGTH}")
            assert "--tokenizer" in str(raised.value)


def test_a_length_that_lies(folder: Path, tmp_path: Path) -> None:
    """Is found when its row is made; the error names the sample, and nothing of its batch comes."""
    true_url = _lying(folder, tmp_path)
    with start_server(_config(folder, "one", datasets={"d": true_url})) as lying:
        with pytest.raises(StageFailedError, match="sample 13 has") as raised:
            _batches(lying, f"d:{_LENGTH}", batch_size=1000)
        assert raised.value.metadata["sample_id"] == "13"


def _lying(folder: Path, tmp_path: Path) -> str:
    """Write 20 texts with the lengths of others, of which the 14th is longer."""
    texts: list[str | None] = ["alpha beta"] * 20
    true_url = _write_texts(str(tmp_path / "true"), texts)
    other_url = _write_texts(str(tmp_path / "other"), [*texts[:13], "x of x of", *texts[14:]])
    tokenizer = load_tokenizer(folder / "one.json")
    true, other = (_index(Path(url), tokenizer) for url in (true_url, other_url))
    for file in (tmp_path / "other" / "packing" / other.dataset).iterdir():
        target = tmp_path / "true" / "packing" / true.dataset / file.name
        target.write_bytes(of_other_dataset(file.read_bytes(), other.dataset, true.dataset))
    return true_url


def test_a_run_keeps_its_tokenizer(folder: Path, tmp_path: Path, server: Server) -> None:
    """A token of rows or samples of one tokenizer is refused with another."""
    url = _write_texts(str(tmp_path / "texts"), _texts())
    one, two = (load_tokenizer(folder / f"{name}.json") for name in ("one", "two"))
    with start_server(_config(folder, "one", "two", datasets={"d": url})) as changing:
        states = []
        for tokenizer in (one, two):
            _index(Path(url), tokenizer)
            with (
                start_server(_config(folder, "one", "two", datasets={"d": url})) as indexed,
                RemoteDataset(indexed.address, f"d:{_LENGTH}", batch_size=2) as dataset,
            ):
                next(iter(dataset))
                states.append(dataset.state_dict())
        with RemoteDataset(changing.address, f"d:{_LENGTH}", batch_size=2) as dataset:
            dataset.load_state_dict(states[0])
            with pytest.raises(TokenDatasetChangedError):
                next(iter(dataset))
    with RemoteDataset(
        server.address, "texts", batch_size=2, stages=[Tokenize("text", "one")]
    ) as dataset:
        next(iter(dataset))
        state = dataset.state_dict()
    for step in (
        Tokenize("text", "two"),
        Tokenize("text", "one", special_tokens=True),
    ):
        with RemoteDataset(server.address, "texts", batch_size=2, stages=[step]) as dataset:
            dataset.load_state_dict(state)
            with pytest.raises(TokenSpecChangedError, match=r"headrace\.tokenizer@"):
                next(iter(dataset))


def test_a_digest_may_be_asked_for(folder: Path, server: Server) -> None:
    """Then a state can be made before the first batch; another digest is refused."""
    digest = load_tokenizer(folder / "one.json").digest
    first = {}
    for wanted in ("", digest):
        step = Tokenize("text", "one", digest=wanted)
        with RemoteDataset(server.address, "texts", batch_size=7, stages=[step]) as dataset:
            if wanted:
                state = dataset.state_dict()
                dataset.load_state_dict(state)
            first[wanted] = _shown(next(iter(dataset)))
    assert first[""] == first[digest]
    wrong = Tokenize("text", "one", digest="0" * 32)
    with pytest.raises(TokenSpecChangedError, match=digest):
        _batches(server, "texts", stages=[wrong])
    with pytest.raises(BadArgumentError, match="b2sum"):
        Tokenize("text", "one", digest="short")


def test_callers_name_no_files(folder: Path, server: Server) -> None:
    """A path is a name that nobody has registered; the file is not opened."""
    for name in (f"{folder}/one.json", "../one.json", "one.json", "three"):
        with pytest.raises(BadArgumentError, match=r"there is no tokenizer .* one \("):
            _batches(server, "texts", stages=[Tokenize("text", name)])
    for column in ("number", "nothing"):
        with pytest.raises(BadArgumentError, match="tokenize: "):
            _batches(server, "texts", stages=[Tokenize(column, "one")])


def test_texts_that_fail(tmp_path: Path) -> None:
    """Are named with their sample, when they are counted and when they are served."""
    words = word_file(tmp_path / "words.json", ["a", "b"])
    url = _write_texts(str(tmp_path / "texts"), ["a b", "b", "a c", "a"])
    with pytest.raises(BadArgumentError, match=r"sample 2 cannot be tokenized: .*UNK"):
        _index(Path(url), load_tokenizer(words))

    with server_of({"d": url}, plugs=_tokenizers(f"words={words}")) as server:
        with pytest.raises(StageFailedError, match=r"UNK.*it is sample 2"):
            _batches(server, "d", stages=[Tokenize("text", "words")])
        rows = _rows(
            _batches(server, Selection("d", skips=[2]), stages=[Tokenize("text", "words")])
        )
    assert rows[0]["text"] == [0, 1]


def test_time_ends_a_batch(folder: Path, tmp_path: Path) -> None:
    """After `stage_timeout_s`, between two texts."""
    url = _write_texts(str(tmp_path / "long"), ["alpha beta gamma " * 2000] * 40)
    config = _config(folder, "one", stage_timeout_s=0.001, datasets={"d": url})
    with start_server(config) as server, pytest.raises(StageFailedError, match=r"of 40 parts"):
        _batches(server, "d", batch_size=40, stages=[Tokenize("text", "one")])


def test_a_server_with_a_bad_tokenizer_does_not_start(folder: Path, tmp_path: Path) -> None:
    """It says which file."""
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    for stated, message in (
        (f"bad={bad}", "bad.json is not a tokenizer"),
        ("bad", "expected NAME=FILE"),
        (f"none={tmp_path / 'none.json'}", "cannot be read"),
    ):
        datasets = {"d": str(folder / "tokens")}
        with (
            pytest.raises(ConfigurationError, match=message),
            server_of(datasets, plugs=_tokenizers(stated)),
        ):
            pass


def test_rows_of_texts_are_mixed(folder: Path, tmp_path: Path) -> None:
    """Mixed rows of texts are those of mixed rows of their tokens; tokenizers are not mixed."""
    other: list[str | None] = [*random_texts(80, seed=9), "alpha beta", None]
    tokenizer = load_tokenizer(folder / "one.json")
    _write_texts(str(tmp_path / "more"), other)
    tokens = tokenizer.encode([(text or "").encode() for text in other])
    table = pa.table({"text": pa.array(tokens, pa.list_(pa.int32()))})
    write_dataset(str(tmp_path / "stored"), table, shard_samples=[len(other)])
    _write_texts(str(tmp_path / "foreign"), other)
    _index(tmp_path / "more", tokenizer)
    _index(tmp_path / "stored", None)
    _index(tmp_path / "foreign", load_tokenizer(folder / "two.json"))
    datasets = {name: str(folder / name) for name in ("texts", "tokens")}
    datasets |= {name: str(tmp_path / name) for name in ("more", "stored", "foreign")}
    with start_server(_config(folder, "one", "two", datasets=datasets)) as server:
        fields: dict[str, Any] = {"rank": 0, "world_size": 1, "shuffle": True}

        def rows(*names: str, **more: Any) -> list[dict[str, Any]]:
            mixture: Any = [(f"{name}:{_LENGTH}", 0.5) for name in names]
            return _batches(server, mixture, **{**fields, **more})

        wanted = rows("tokens", "stored")
        assert rows("texts", "more") == wanted
        # Their datasets have documents of equal ids, some in one batch.
        assert any(
            len({tuple(row) for row in batch["ids"]}) > len({row[1] for row in batch["ids"]})
            for batch in wanted
        )
        parts = [rows("texts", "more", rank=rank, world_size=2, batch_size=4) for rank in (0, 1)]
        alone = rows("tokens", "stored", batch_size=8)
        assert [[*one["ids"], *two["ids"]] for one, two in zip(*parts, strict=True)] == [
            batch["ids"] for batch in alone
        ]
        for names in (("texts", "foreign"), ("texts", "stored")):
            with pytest.raises(BadArgumentError, match="tokens of the tokenizer"):
                rows(*names)


def test_a_length_that_lies_in_a_mixture_is_named_with_its_dataset(
    folder: Path, tmp_path: Path
) -> None:
    """Sample 13 of the second dataset, not of the first."""
    honest = _write_texts(str(tmp_path / "honest"), ["alpha beta"] * 20)
    _index(Path(honest), load_tokenizer(folder / "one.json"))
    datasets = {"a": honest, "b": _lying(folder, tmp_path)}
    with start_server(_config(folder, "one", datasets=datasets)) as server:
        mixture: Any = Mixture(
            tuple(MixtureEntry(f"{name}:{_LENGTH}", repeat=1.0) for name in datasets)
        )
        with pytest.raises(StageFailedError, match="sample 13 of the mixture's dataset 1 has") as e:
            _batches(server, mixture, rank=0, world_size=1, batch_size=1000)
        assert e.value.metadata["sample_id"] == "13"


@pytest.mark.long
def test_a_private_server_has_the_tokenizers_of_its_job(
    folder: Path, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are those of another server, and without the tokenizer it says which it needs."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    source = f"{folder / 'texts'}:{_LENGTH}"
    options: dict[str, Any] = {"batch_size": 7, "seed": 5, "epochs": 1, "end": "uneven", **_IDS}
    private = PrivateServer(tokenizers={"bpe": folder / "one.json"})
    with RemoteDataset(None, source, transport=Transport(private=private), **options) as dataset:
        assert [_shown(batch) for batch in dataset] == _batches(server, f"texts:{_LENGTH}")
    with (
        RemoteDataset(None, source, **options) as bare,
        pytest.raises(ConfigurationError, match="tokenizer"),
    ):
        next(iter(bare))
    wrongs: list[Any] = [{"a=b": "x"}, {1: "x"}, {"a": 1}]
    for wrong in wrongs:
        with pytest.raises(BadArgumentError, match="tokenizers"):
            PrivateServer(tokenizers=wrong)
