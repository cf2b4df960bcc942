"""Token ids on the page, as the text that a tokenizer makes of them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models

from headrace.storage import load_tokenizer
from support.datasets import write_dataset
from support.paged import paged, served_page

_WORDS = ["<s>", "<script>alert(1)</script>", "sails", "a", "boat", "sea"]
_ROWS = [[3, 4, 2], [0, 1, 5], [], [99], [-1], [3] * 5000, [2, None, 4], None]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A file of a tokenizer of six words."""
    library = Library(models.WordLevel({word: at for at, word in enumerate(_WORDS)}))
    library.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    library.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def _write(folder: Path) -> str:
    table = pa.table(
        {
            "input_ids": pa.array(_ROWS, pa.list_(pa.int64())),
            "other": pa.array([[1]] * len(_ROWS), pa.list_(pa.int32())),
        }
    )
    write_dataset(str(folder / "red"), table, shard_samples=[len(_ROWS)])
    return str(folder / "red")


def test_tokens_are_shown_as_text_beside_their_ids(tmp_path: Path, tokenizer: Path) -> None:
    """Escaped, shortened, and what are no tokens of that tokenizer as the ids that they are."""
    url = _write(tmp_path)
    with paged({"red": url}, tokenizers={"words": load_tokenizer(tokenizer)}) as page:
        cards = page.ask("/d/red/samples").text.split("<tr aria-label")[1:]
        whole = page.ask("/d/red/sample/5").text
        without = page.ask("/d/red/samples?tokens=").text.split("<tr aria-label")[1]
        other = page.ask("/d/red/samples?tokens=other").text.split("<tr aria-label")[1]
        unknown = page.ask(f"/d/red/samples?tokenizer={quote('<b>')}")

    assert "a boat sails" in cards[0]
    assert "3 items: 3 4 2" in cards[0]
    assert "&lt;script&gt;alert(1)&lt;/script&gt; sea" in cards[1]
    assert "<script>alert" not in "".join(cards)
    assert "an empty list" in cards[2]
    for card, ids in ((cards[3], "99"), (cards[4], "-1"), (cards[6], "2 null 4")):
        assert ids in card
        assert "not in the tokenizer" in card
    assert "the first 64 as text" in cards[5]
    assert "missing" in cards[7]
    assert "the first 4,096 as text" in whole
    assert "boat" not in without
    assert "&lt;script&gt;" in other
    assert 400 == unknown.status
    assert "<b>" not in unknown.text


def test_a_servers_page_knows_its_tokenizers(tmp_path: Path, tokenizer: Path) -> None:
    """Of those that the operator named; another page has none, and offers none."""
    _write(tmp_path)
    with served_page(tmp_path, "--tokenizer", f"words={tokenizer}", names=("red",)) as (_, page):
        assert "a boat sails" in page.ask("/d/red/samples").text
    with paged({"red": str(tmp_path / "red")}) as page:
        text = page.ask("/d/red/samples").text
        assert "a boat sails" not in text
        assert "Text of" not in text
