"""Runs whose tokens hold digests of more than an order, and runs of other datasets."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pytest

from headrace.order import OrderSpec, Token, encode_token, stages_of
from headrace.page.runs.pasted import url_token
from headrace.storage import open_dataset
from support.datasets import write_dataset
from support.paged import Paged, paged, write_tokens

_COUNT = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two datasets of the same shape."""
    folder = tmp_path_factory.mktemp("runs")
    for number, name in enumerate(("red", "blue")):
        table = pa.table({"x": np.arange(_COUNT) + 1000 * number})
        write_dataset(str(folder / name), table, shard_samples=[100, 200], block_bytes=512)
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[Paged]:
    """Show them."""
    with paged({name: str(folder / name) for name in ("red", "blue")}) as running:
        yield running


def _token(url: Path, **changed: Any) -> Token:
    with open_dataset(str(url)) as dataset:
        place = Token(dataset.fingerprint, OrderSpec(unit=8), 0, 0, 8, 0, 0)
        return replace(place, **changed)


def _ask(page: Paged, headers: dict[str, str] | None = None, **tokens: Token) -> str:
    query = urlencode({key: url_token(encode_token(one)) for key, one in tokens.items()})
    return page.ask(f"/run?{query}", headers=headers).text


def test_a_run_of_a_filter_says_how_far_it_is_and_not_what_comes(page: Paged, folder: Path) -> None:
    """Its token has only a digest, so its samples are never those of an order without it."""
    stages = stages_of(skips="0" * 32)
    text = _ask(page, one=_token(folder / "red", step=3, stages=stages))

    assert "<dt>Step</dt><dd>3</dd>" in text
    assert "they depend on a list of skipped samples" in text
    assert "headrace order" in text
    assert "The next global batch" not in text


def test_runs_of_two_datasets_differ_though_their_ids_are_equal(page: Paged, folder: Path) -> None:
    """Ids of other datasets are other samples."""
    stored = OrderSpec(unit=8, shuffle=False)
    one, two = (_token(folder / name, spec=stored) for name in ("red", "blue"))
    assert "first differ in step <strong>0</strong>" in _ask(page, one=one, two=two)


def test_a_tenant_is_told_nothing_of_anothers_datasets(tmp_path: Path, folder: Path) -> None:
    """Its version is one that there is not."""
    tokens = write_tokens(tmp_path / "tokens.json", {"ann": ["red"]})
    urls = {name: str(folder / name) for name in ("red", "blue")}
    with paged(urls, tokens=tokens) as page:
        session = page.session("ann" * 16)
        own = _ask(page, session, one=_token(folder / "red"))
        other = _ask(page, session, one=_token(folder / "blue"))

    assert "The next global batch" in own
    assert "no dataset that you may read has version" in other
    assert ">blue<" not in other


def test_a_batch_of_any_size_costs_no_more_than_a_page_shows(page: Paged, folder: Path) -> None:
    """A token names a size as it likes; one of 2^60 samples is shown in part, and compared."""
    huge = _token(folder / "red", global_batch_size=1 << 60)
    other = replace(huge, spec=replace(huge.spec, seed=9))
    assert "The first 65,536 of its" in _ask(page, one=huge, two=other)


def test_a_token_in_a_state_inside_a_larger_state_is_found(page: Paged, folder: Path) -> None:
    """As `json.dumps` writes it, whatever else is there."""
    text = base64.b64encode(encode_token(_token(folder / "red", step=7))).decode()
    state = json.dumps({"a": [1, {"loader": {"token": text}}]}, indent=1)
    sent = page.ask("/run?" + urlencode({"one": state}))
    assert "<dt>Step</dt><dd>7</dd>" in sent.text
