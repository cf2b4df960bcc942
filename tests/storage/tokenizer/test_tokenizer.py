"""Tests of tokenizers: the same tokens for the same text, and files that are refused.

How it could give wrong tokens: with padding or truncation, which a file may ask for, a text's
tokens depend on its neighbours; with dropout they are drawn; with threads they could be swapped.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigurationError
from headrace.storage import Tokenizer, load_tokenizer
from headrace.storage.tokenizer.tokenizer import (
    CHUNK_BYTES,
    MAX_TEXT_BYTES,
    TextRefusedError,
    text_chunks,
)
from support.tokenizer_files import bpe_file, random_texts, word_file


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that asks for padding and truncation."""
    return bpe_file(
        tmp_path_factory.mktemp("tokenizer") / "tokenizer.json",
        truncation={"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        padding={
            "strategy": "BatchLongest",
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "<s>",
        },
    )


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of the file."""
    return load_tokenizer(path)


@pytest.fixture(scope="module")
def one_by_one(path: Path) -> Callable[[str], list[int]]:
    """What the library makes of one text, with neither."""
    library = tokenizers.Tokenizer.from_file(str(path))
    library.no_padding()
    library.no_truncation()
    return lambda text: library.encode(text, add_special_tokens=False).ids


@settings(max_examples=50)
@given(texts=st.lists(st.text(max_size=40), max_size=12))
def test_tokens_depend_on_the_text_alone(
    tokenizer: Tokenizer, one_by_one: Callable[[str], list[int]], texts: list[str]
) -> None:
    """Whatever goes to the library with it, and whatever the file asks for."""
    expected = [one_by_one(text) for text in texts]

    found = tokenizer.encode([text.encode() for text in texts])
    lengths = tokenizer.lengths([text.encode() for text in texts])

    assert expected == [each.tolist() for each in found]
    assert [len(each) for each in expected] == lengths.tolist()


def test_threads_make_the_same(tokenizer: Tokenizer) -> None:
    """Four at a time."""
    texts = [text.encode() for text in random_texts(400, seed=2)]
    parts = [texts[start : start + 10] for start in range(0, 400, 10)]
    expected = [each.tolist() for each in tokenizer.encode(texts)]

    with ThreadPoolExecutor(4) as threads:
        found = [each.tolist() for part in threads.map(tokenizer.encode, parts) for each in part]

    assert expected == found


def test_special_tokens_only_on_request(tokenizer: Tokenizer) -> None:
    """They are those of the file."""
    (plain,) = tokenizer.encode([b"alpha"])
    (marked,) = tokenizer.encode([b"alpha"], special_tokens=True)

    assert [0, *plain.tolist(), 1] == marked.tolist()


@given(sizes=st.lists(st.integers(0, 2 * CHUNK_BYTES), max_size=20))
def test_chunks_cover_all_texts_in_order(sizes: list[int]) -> None:
    """Each is of one text, or small."""
    chunks = list(text_chunks(sizes))

    assert [row for start, end in chunks for row in range(start, end)] == list(range(len(sizes)))
    for start, end in chunks:
        assert end == start + 1 or sum(sizes[start:end]) <= CHUNK_BYTES


def test_a_text_that_is_refused_is_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """By its place, with the reason."""
    words = load_tokenizer(word_file(tmp_path / "words.json", ["a", "b"]))
    for each, texts, reason in (
        (tokenizer, [b"a", b"x" * (MAX_TEXT_BYTES + 1)], "split it"),
        (tokenizer, [b"a", b"\xff\xfe"], "not UTF-8"),
        (words, [b"a b", b"a c"], "UNK"),
    ):
        with pytest.raises(TextRefusedError, match=reason) as raised:
            each.lengths(texts)
        assert raised.value.row == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a tokenizer"),
        (b"{}", "not a tokenizer"),
        (b"[]", "not a tokenizer"),
        (b"[" * 100_000, "not a tokenizer"),
        (b"\xff", "not a tokenizer"),
        (b'{"model": {"type": "BPE", "dropout": 0.1}}', "dropout 0.1"),
        (b'{"model": {"type": "BPE"}}', "can load"),
        (b'{"model": 1}', "not a tokenizer"),
    ],
)
def test_files_that_are_none_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    """With the file's name, and what to do."""
    file = tmp_path / "tokenizer.json"
    file.write_bytes(content)

    with pytest.raises(ConfigurationError, match=message) as raised:
        load_tokenizer(file)
    assert str(file) in str(raised.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """Nor is a folder one."""
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(ConfigurationError, match="cannot be read"):
            load_tokenizer(path)


def test_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    """So that ``b2sum --length 128`` prints it."""
    file = word_file(tmp_path / "words.json", ["a"])
    file.write_text(
        '{"version":"1.0","model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}}'
    )

    assert "6d321547edee13c8a965cef9fe51442f" == load_tokenizer(file).digest
