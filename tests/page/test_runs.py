"""Runs whose tokens hold digests: what is given is held to them, and the samples are the run's."""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pytest

from headrace.client import Mixture, MixtureEntry, RemoteDataset, Selection
from headrace.errors import BadArgumentError
from headrace.order import (
    MixtureDataset,
    MixtureSpec,
    OrderSpec,
    Skips,
    Token,
    dump_mixture,
    encode_token,
    stages_of,
)
from headrace.page.data.filter_results import FilterResults
from headrace.page.runs.run_options import read_mixture_text, read_skips
from headrace.storage import open_dataset
from support.command import Serving, serving
from support.datasets import write_dataset
from support.paged import Answer, Paged, paged, write_tokens

_COUNT = 300
_FORM = {"content-type": "application/x-www-form-urlencoded"}


@dataclass(frozen=True)
class _World:
    folder: Path
    server: Serving
    page: Paged


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_World]:
    """Two datasets, served and shown; the values of blue go on where those of red end."""
    folder = tmp_path_factory.mktemp("runs")
    for number, name in enumerate(("red", "blue")):
        values = np.arange(_COUNT) + 1000 * number
        table = pa.table({"x": values, "third": values % 3})
        write_dataset(str(folder / name), table, shard_samples=[100, 200], block_bytes=512)
    urls = {name: str(folder / name) for name in ("red", "blue")}
    with serving(urls) as server, paged(urls) as page:
        yield _World(folder, server, page)


def _mixture() -> Mixture:
    return Mixture(
        (
            MixtureEntry("red", proportion=3, where="third = 1", skips=[1, 4]),
            MixtureEntry("blue", proportion=1),
        )
    )


_SUBJECTS: dict[str, Any] = {
    "filter": Selection("red", where="third = 1"),
    "skips": Selection("red", skips=list(range(290))),
    "both": Selection("red", where="third < 2", skips=[3, 6, 7]),
    "mixture": [("red", 1.0), ("blue", 2.0)],
    "filtered mixture": _mixture(),
}


def _read(world: _World, what: str) -> tuple[dict[str, Any], list[int]]:
    """Return a state after three batches, and the values of the fourth."""
    with RemoteDataset(world.server.address, _SUBJECTS[what], batch_size=8, seed=5) as dataset:
        batches = iter(dataset)
        for _ in range(3):
            next(batches)
        state = dataset.state_dict()
        values: Any = next(batches)["x"]
        return state, values.tolist()


def _show(page: Paged, **fields: str) -> Answer:
    """Send the form, and follow the address that it becomes."""
    body = urlencode(fields).encode()
    sent = page.ask("/run", method="POST", headers=_FORM, body=body)
    return page.ask(sent.headers["location"]) if sent.status == 303 else sent


def _values(answer: Answer) -> list[int]:
    """Return the values of the samples that are shown."""
    found = re.search(r'<p class="ids">([^<]*)</p>', answer.text)
    assert found is not None, answer.text
    names = re.findall(r"red|blue", answer.text.partition("<dt>Dataset")[2].partition("<code>")[0])
    order = list(dict.fromkeys(names))
    values = []
    for word in found[1].split():
        owner, _, own = word.rpartition(":")
        values.append(int(own) + 1000 * (order[int(owner or 0)] == "blue"))
    return values


@pytest.mark.parametrize("what", list(_SUBJECTS))
def test_a_state_tells_the_next_samples_of_its_run(world: _World, what: str) -> None:
    """Those that the run gets, whatever filter, list or mixture it has."""
    state, expected = _read(world, what)

    assert expected == _values(_show(world.page, one=json.dumps({"loader": state})))


def test_a_token_with_what_its_job_was_given_tells_the_same(world: _World) -> None:
    """A filter as text, ids as lines with comments, a mixture as the command line takes it."""
    state, expected = _read(world, "both")
    lines = "# damaged\n3\n7 # twice\n6\n"
    answer = _show(world.page, one=state["token"], where_one=" third<2", skips_one=lines)
    assert expected == _values(answer)

    state, expected = _read(world, "mixture")
    for text in ("red=1 blue=2", json.dumps(state["spec"]["mixture"])):
        assert expected == _values(_show(world.page, one=state["token"], mixture_one=text))


@pytest.mark.parametrize(
    ("what", "fields", "words"),
    [
        ("filter", {}, "give the filter"),
        ("filter", {"where_one": "third = 2"}, "it is not the run"),
        ("filter", {"where_one": "third = 1", "skips_one": "4"}, "the token has no list"),
        ("filter", {"where_one": "third ="}, "third ="),
        ("filter", {"where_one": "fourth = 1"}, "fourth"),
        ("filter", {"mixture_one": "red=1 blue=2"}, "leave the mixture empty"),
        ("skips", {}, "give their ids"),
        ("skips", {"skips_one": "1,2"}, "it is not the run"),
        ("skips", {"skips_one": "0" * 32}, "give their ids"),
        ("skips", {"skips_one": "1,x"}, "not a sample id"),
        ("skips", {"skips_one": "100000"}, "100000"),
        ("both", {"where_one": "third < 2", "skips_one": "3,6"}, "it is not the run"),
        ("mixture", {}, "give the mixture"),
        ("mixture", {"mixture_one": "red=2 blue=1"}, "it is not the run"),
        ("mixture", {"mixture_one": "blue=2 red=1"}, "it is not the run"),
        (
            "mixture",
            {"mixture_one": "red=1 blue=2", "where_one": "x=1"},
            "with a mixture; give them in the mixture",
        ),
        ("mixture", {"mixture_one": "{]"}, "cannot be read"),
        ("mixture", {"mixture_one": '{"datasets": 3}'}, "cannot be read"),
        ("mixture", {"mixture_one": "red=a"}, "not a weight"),
        ("mixture", {"mixture_one": "red=nan blue=2"}, "proportion"),
        ("mixture", {"mixture_one": '{"a":' * 5000}, "cannot be read"),
    ],
)
def test_what_is_of_another_run_is_refused(
    world: _World, what: str, fields: dict[str, str], words: str
) -> None:
    """In words; the rest of what a token says is shown, and no sample is."""
    state, _ = _read(world, what)
    answer = _show(world.page, one=state["token"], **fields)

    assert (200 if words.startswith("give") else 409) == answer.status
    assert words in answer.text.replace("&#39;", "'")
    assert "<dt>Step</dt><dd>3</dd>" in answer.text
    assert "The next global batch" not in answer.text


def test_a_mixture_without_an_entry_s_filter_is_refused(world: _World) -> None:
    """Its digest is that of weights and names alone, so filters and lists have their own."""
    state, _ = _read(world, "filtered mixture")
    mixture = state["spec"]["mixture"]
    for name, words in (("where", "filter"), ("skips", "list of skipped samples")):
        changed = {**mixture, "datasets": [{**mixture["datasets"][0], name: None}]}
        changed["datasets"].append(mixture["datasets"][1])
        answer = _show(world.page, one=state["token"], mixture_one=json.dumps(changed))

        assert 409 == answer.status
        assert f"the token has a {words}" in answer.text


def test_versions_that_changed_are_refused_unless_the_state_names_them(tmp_path: Path) -> None:
    """A mixture by names alone is of the versions of the day."""
    for name in ("red", "blue"):
        write_dataset(str(tmp_path / name), pa.table({"x": range(50)}), shard_samples=[50])
    urls = {name: str(tmp_path / name) for name in ("red", "blue")}
    with (
        serving(urls) as server,
        RemoteDataset(server.address, [("red", 1), ("blue", 1)], batch_size=4) as dataset,
    ):
        next(iter(dataset))
        state = dataset.state_dict()
    write_dataset(urls["blue"], pa.table({"x": range(60)}), shard_samples=[60], mode="overwrite")
    with paged(urls) as page:
        answer = _show(page, one=str(state["token"]), mixture_one="red=1 blue=1")
        whole = _show(page, one=json.dumps(state))

    assert 409 == answer.status
    assert "these versions" in answer.text
    assert "The next global batch" in whole.text


def test_what_is_too_long_for_an_address_is_shown_all_the_same(world: _World) -> None:
    """And it is said that such a view has no address."""
    ids = [sample for sample in range(_COUNT) if sample % 7]
    comments = "\n".join(f"{sample}  # {'damaged ' * 8}" for sample in ids)
    with RemoteDataset(world.server.address, Selection("red", skips=ids), batch_size=8) as dataset:
        batches = iter(dataset)
        next(batches)
        state = dataset.state_dict()
        values: Any = next(batches)["x"]
    answer = _show(world.page, one=str(state["token"]), skips_one=comments)

    assert 200 == answer.status
    assert "too long for a URL" in answer.text
    assert values.tolist() == _values(answer)


def test_a_list_of_the_server_is_found_by_its_digest(world: _World, tmp_path: Path) -> None:
    """Its file is the operator's, so a run that names it needs nothing else."""
    (tmp_path / "list.txt").write_text("1\n2\n# none\n50\n")
    config = {"datasets": {"red": {"url": str(world.folder / "red"), "skips": ["list.txt"]}}}
    (tmp_path / "serve.json").write_text(json.dumps(config))
    token = _token(world.folder / "red", stages=stages_of(skips=Skips([1, 2, 50]).digest))
    page = world.page
    library = page.site.library
    given = library._configs()
    changed = replace(given["red"], skips=(str(tmp_path / "list.txt"), "/nowhere"))
    other = dict(given, red=changed)
    try:
        library._configs = lambda: other
        answer = _show(page, one=base64.b64encode(encode_token(token)).decode())
    finally:
        library._configs = lambda: given

    assert "The next global batch" in answer.text


def test_a_tenant_is_told_nothing_of_anothers_datasets(tmp_path: Path, world: _World) -> None:
    """Not by name and not by version: the answer is that of a dataset that there is not."""
    tokens = write_tokens(tmp_path / "tokens.json", {"ann": ["red"]})
    state, _ = _read(world, "mixture")
    urls = {name: str(world.folder / name) for name in ("red", "blue")}
    with paged(urls, tokens=tokens) as page:
        session = page.session("ann" * 16)

        def told(mixture: str) -> str:
            query = urlencode({"one": state["token"], "mixture_one": mixture})
            return page.ask(f"/run?{query}", headers=session).text

        named = told("red=1 blue=2")
        versions = told(json.dumps(state["spec"]["mixture"]))

    assert "there is no dataset" in named
    assert "no dataset that you may read" in versions
    for text in (named, versions):
        assert "The next global batch" not in text


def test_two_runs_with_other_filters_say_where_they_differ(world: _World) -> None:
    """Samples are compared, and not only digests; of mixtures with their datasets."""
    one, _ = _read(world, "filter")
    two, _ = _read(world, "both")
    answer = _show(world.page, one=json.dumps(one), two=json.dumps(two))
    assert "first differ in step <strong>0</strong>" in answer.text
    assert "filter: " in answer.text

    # Ids of other datasets are other samples, though their numbers are equal.
    stored = OrderSpec(unit=8, shuffle=False)
    red, blue = (
        encode_token(_token(world.folder / name, spec=stored)).hex() for name in ("red", "blue")
    )
    answer = _show(world.page, one=red, two=blue)
    assert "first differ in step <strong>0</strong>" in answer.text


def _token(url: Path, **changed: Any) -> Token:
    with open_dataset(str(url)) as dataset:
        place = Token(dataset.fingerprint, OrderSpec(unit=8), 0, 0, 8, 0, 0)
        return replace(place, **changed)


def test_a_batch_of_any_size_costs_no_more_than_a_page_shows(world: _World) -> None:
    """A token names a size as it likes; one of 2^60 samples is shown in part, and compared."""
    huge = _token(world.folder / "red", global_batch_size=1 << 60)
    other = replace(huge, spec=replace(huge.spec, seed=9))
    fields = {
        key: base64.b64encode(encode_token(one)).decode()
        for key, one in (("one", huge), ("two", other))
    }
    answer = _show(world.page, **fields)

    assert 200 == answer.status
    assert "The first 65,536 of its" in answer.text


def test_a_filter_that_takes_too_long_is_refused(tmp_path: Path) -> None:
    """A page says what takes the time that it needs, and has a place for the next one."""
    values = np.arange(20_000)
    table = pa.table({"third": values % 3})
    write_dataset(str(tmp_path), table, shard_samples=[20_000], block_bytes=256)
    ticks = itertools.count(0, 10)
    filtered = FilterResults(now=lambda: float(next(ticks)))
    with open_dataset(str(tmp_path)) as dataset:
        for _ in range(3):
            with pytest.raises(BadArgumentError, match="headrace order URL --where"):
                filtered.get(dataset, "third = 1")
        assert 6667 == FilterResults().get(dataset, "third = 1").count


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", None), ("[3, 1,1]", [1, 3]), ("7\n5 # no\n\n", [5, 7]), ("# none", [])],
)
def test_ids_are_read_as_people_have_them(text: str, expected: list[int] | None) -> None:
    """From JSON, from a list, from a file of the server."""
    found = read_skips(text)

    assert expected == (None if found is None else list(found.sample_ids))


def test_a_mixture_that_headrace_order_printed_is_read() -> None:
    """It has the order's options too, which are the token's to say."""
    spec = MixtureSpec((MixtureDataset("red", "0" * 32, proportion=2.0),))
    assert spec.digest == read_mixture_text(dump_mixture(spec)).spec(OrderSpec()).digest
