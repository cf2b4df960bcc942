"""What the page shows is what the dataset, the order and the token say."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from headrace.client import NumpyDataset
from headrace.order import (
    EndMode,
    EpochPlan,
    Order,
    OrderSpec,
    Token,
    batch_sample_ids,
    encode_token,
    table_of,
)
from headrace.page.runs.comparison import compare
from headrace.storage import open_dataset
from support.command import run, serving
from support.datasets import write_dataset
from support.paged import Paged, paged

_COUNT = 600
_CLASSES = ("apple", "pear", "plum")


_FIELDS: list[pa.Field[Any]] = [
    pa.field("label", pa.int64(), metadata={"headrace.classes": json.dumps(_CLASSES)}),
    pa.field("image", pa.binary()),
    pa.field("mask", pa.binary()),
    pa.field("bbox", pa.list_(pa.list_(pa.float64()))),
    pa.field("sound", pa.binary()),
    pa.field("tokens", pa.list_(pa.int32())),
    pa.field("grid", pa.list_(pa.list_(pa.float32(), 4), 4)),
    pa.field("ratio", pa.float64()),
    pa.field("flags", pa.list_(pa.bool_(), 4)),
]


def _png(array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    sink = io.BytesIO()
    Image.fromarray(array).save(sink, "PNG")
    return sink.getvalue()


def _table() -> pa.Table:
    ids = np.arange(_COUNT)
    image = _png(np.full((20, 30, 3), 90, np.uint8))
    classes = np.zeros((20, 30), np.uint8)
    classes[5:15, 5:15] = 2
    mask = _png(classes)
    box = [[3.0, 4.0, 10.0, 12.0], [1.0, 1.0, 2.0, 2.0]]
    wav = b"RIFF\x24\0\0\0WAVEfmt " + bytes(28)
    grid = np.repeat(ids.astype(np.float32), 16)
    return pa.table(
        {
            "label": pa.array(ids * 3 // _COUNT),
            "image": pa.array([image] * _COUNT),
            "mask": pa.array([mask if i % 2 else None for i in ids]),
            "bbox": pa.array([box if i else [] for i in ids], pa.list_(pa.list_(pa.float64()))),
            "sound": pa.array([wav] * _COUNT),
            "tokens": pa.array([list(range(i % 50)) for i in ids], pa.list_(pa.int32())),
            "grid": pa.FixedSizeListArray.from_arrays(
                pa.FixedSizeListArray.from_arrays(pa.array(grid), 4), 4
            ),
            "ratio": pa.array([None if i % 10 == 0 else i / 2 for i in ids], pa.float64()),
            "flags": pa.array([[True, False, True, True]] * _COUNT, pa.list_(pa.bool_(), 4)),
        }
    ).cast(pa.schema(_FIELDS))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Photographs with masks, boxes, sounds, tokens, tensors and nulls."""
    url = str(tmp_path_factory.mktemp("rich"))
    write_dataset(url, _table(), shard_samples=[200, 200, 200])
    return url


@pytest.fixture(scope="module")
def page(url: str) -> Iterator[Paged]:
    """Show it."""
    with paged({"rich": url}) as running:
        yield running


def _ids_of(text: str) -> list[int]:
    return [int(found) for found in re.findall(r'aria-label="Sample (\d+)"', text)]


def test_samples_come_by_page_by_id_and_at_random(page: Paged) -> None:
    """A link shows the same samples to everybody."""
    text = page.ask("/d/rich/samples?at=10&n=5").text
    assert [10, 11, 12, 13, 14] == _ids_of(text)
    assert 'rel="next"' in text
    assert "at=15" in text

    assert [7, 3, 4, 5] == _ids_of(page.ask("/d/rich/samples?ids=7,3-5").text)
    both = f"/d/rich/samples?ids=7,3-5,21&where={quote('ratio < 2.5')}"
    assert [3, 4] == _ids_of(page.ask(both).text)

    drawn = _ids_of(page.ask("/d/rich/samples?random=5&n=10").text)
    assert drawn == _ids_of(page.ask("/d/rich/samples?random=5&n=10").text)
    assert drawn != _ids_of(page.ask("/d/rich/samples?random=6&n=10").text)
    assert [598, 599] == _ids_of(page.ask("/d/rich/samples?at=598").text)


def test_a_filter_shows_what_it_keeps_page_after_page(page: Paged) -> None:
    """Its pages together are the samples for which it is true."""
    at, found = 0, []
    while True:
        text = page.ask(
            f"/d/rich/samples?n=50&at={at}&where={quote('ratio > 200 and label = 2')}"
        ).text
        found += _ids_of(text)
        following = re.search(r'rel="next"[^>]*href="\?[^"]*at=(\d+)', text)
        if following is None:
            break
        at = int(following[1])

    assert [i for i in range(_COUNT) if i % 10 and i / 2 > 200 and i * 3 // _COUNT == 2] == found


def test_each_kind_of_value_is_shown_as_what_it_is(page: Paged) -> None:
    """Classes by name, masks and boxes over images, sounds with a player, nulls as such."""
    text = page.ask("/d/rich/samples?at=1&n=1").text

    assert "apple" in text
    assert text.count("as=mask") == 2
    assert text.count("<rect ") == 2
    assert '<rect x="3.0" y="4.0" width="7.0" height="8.0">' in text
    assert "<audio controls" in text
    assert (
        '<rect x="3.0" y="4.0" width="10.0" height="12.0">'
        in page.ask("/d/rich/samples?at=1&n=1&form=xywh").text
    )
    none = page.ask("/d/rich/samples?at=0&n=1").text
    assert 'class="null"' in none
    assert "as=mask" not in none
    assert "<rect " not in page.ask("/d/rich/samples?at=1&n=1&boxes=").text


def test_files_are_the_stored_ones_and_tensors_are_drawn(page: Paged) -> None:
    """Small images travel as they are; a tensor of floats is black to white."""
    stored = _table()
    image = page.ask("/d/rich/file/3/1")
    assert stored["image"][3].as_py() == image.content
    assert "image/png" == image.headers["content-type"]
    assert "audio/wav" == page.ask("/d/rich/file/3/4").headers["content-type"]

    with Image.open(io.BytesIO(page.ask("/d/rich/file/3/2?as=mask").content)) as mask:
        alphas = np.asarray(mask)[..., 3]
    assert {0, 150} == set(np.unique(alphas).tolist())
    assert 100 == int((alphas > 0).sum())

    with Image.open(io.BytesIO(page.ask("/d/rich/file/3/6").content)) as grid:
        assert (4, 4) == grid.size
    assert "black is 3, white is 3" in page.ask("/d/rich/sample/3").text


def test_a_histogram_counts_what_there_is(page: Paged) -> None:
    """Counts add up, nulls and zeros are told apart, and a filter is obeyed."""
    text = page.ask("/d/rich/column/7").text
    counts = [
        int(found.replace(",", "")) for found in re.findall(r'<meter[^>]*value="(\d+)"', text)
    ]
    assert _COUNT - 60 == sum(counts)
    assert "nulls: 60" in text
    assert "The median is about" in text
    assert "blocks were counted" in text

    classes = page.ask("/d/rich/column/0").text
    assert [200] * 3 == [int(each) for each in re.findall(r'<meter[^>]*value="(\d+)"', classes)]
    assert "pear" in classes
    assert "200 samples" in page.ask(f"/d/rich/column/0?where={quote('label = 1')}").text
    for number in range(9):
        assert 200 == page.ask(f"/d/rich/column/{number}").status


@pytest.mark.parametrize(
    ("low", "high", "bars"),
    [
        (1, 31, [str(day) for day in range(1, 32)]),
        (-1, 60, [f"{start} to {start + 1}" for start in range(-1, 61, 2)]),
        (7, 7, ["7"]),
        (-(1 << 53), 1 << 53, None),
    ],
)
def test_whole_numbers_have_bars_of_whole_numbers(
    tmp_path: Path, low: int, high: int, bars: list[str] | None
) -> None:
    """None is empty where every number comes as often; those that are not exact are ranges."""
    count = max(min(high - low, 62) + 1, 2)
    numbers = np.linspace(low, high, count).round().astype(np.int64)
    write_dataset(str(tmp_path), pa.table({"x": numbers}), shard_samples=[count])
    with paged({"d": str(tmp_path)}) as page:
        text = page.ask("/d/d/column/0").text

    found = re.findall(r'<th scope="row"><bdi>(.*?)</bdi>', text)
    counts = [int(each) for each in re.findall(r'<meter[^>]*value="(\d+)"', text)]
    assert count == sum(counts)
    if bars is None:
        assert 32 == len(found)
    else:
        assert bars == found
        assert 1 == len(set(counts))


def test_wrong_ids_leave_the_form_as_it_was(page: Paged) -> None:
    """With what is wrong beside it, as for a filter."""
    answer = page.ask("/d/rich/samples?ids=0,7,999999999")

    assert 400 == answer.status
    assert "there is no sample 999999999" in answer.text
    assert 'value="0,7,999999999"' in answer.text


def test_an_overview_has_a_card_with_a_preview_a_snippet_and_every_column(page: Paged) -> None:
    """The parts that read a store are loaded on their own, so that the rest is there at once."""
    assert 'data-load="/d/rich/preview"' in page.ask("/").text
    assert 3 == page.ask("/d/rich/preview").text.count("<img ")
    overview = page.ask("/d/rich").text
    assert "RemoteDataset(&#34;127.0.0.1:50051&#34;" in overview or "RemoteDataset(" in overview
    columns = page.ask("/d/rich/columns").text
    assert 9 == columns.count('class="card column"')
    assert "Classes of <bdi>label</bdi>" in columns
    assert "10.0 % null" in columns


def test_columns_are_chosen_and_pinned(page: Paged) -> None:
    """By the address, so that a link shows the same."""
    text = page.ask("/d/rich/samples?n=1&c0=on&c7=on&p7=on").text
    heads = re.findall(r'<th scope="col" class="\w+( pin)?"><a [^>]*><bdi>(.*?)</bdi>', text)
    assert [(" pin", "ratio"), ("", "label")] == heads


def test_a_filter_that_cannot_be_read_says_where(page: Paged) -> None:
    """Under its caret, and nothing else is lost."""
    answer = page.ask(f"/d/rich/samples?where={quote('label = 1 and ')}")
    assert 400 == answer.status
    assert '<pre id="caret" class="caret" role="alert">             ^' in answer.text
    assert "character 14" in answer.text
    assert 'value="label = 1 and "' in answer.text


def test_the_charts_are_those_of_npm(page: Paged) -> None:
    """Unchanged: what runs in a browser with a session is what its authors published."""
    expected = "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
    assert expected == sha256(page.ask("/static/uPlot.iife.min.js").content).hexdigest()


def test_an_address_without_a_view_is_told(page: Paged) -> None:
    """By a page, and with a way back."""
    answer = page.ask("/nowhere")
    assert 404 == answer.status
    assert "All datasets" in answer.text
    unknown, wrong = page.ask("/d/nowhere/samples").text, page.ask("/d/rich/sample/600").text
    assert 'class="tabs"' not in unknown
    assert "Back to" not in unknown
    assert 'href="/d/rich/samples">Back to samples' in wrong


def test_an_empty_dataset_says_that_it_is_empty(tmp_path: Path) -> None:
    """On its card and where its samples would be."""
    write_dataset(str(tmp_path), pa.table({"x": pa.array([], pa.int64())}), shard_samples=[])
    with paged({"empty": str(tmp_path)}) as empty:
        assert "It has no samples." in empty.ask("/d/empty/preview").text
        assert "This version has no samples." in empty.ask("/d/empty/samples").text


def test_only_64_mib_are_looked_at_and_that_is_said(tmp_path: Path) -> None:
    """Of a large dataset some blocks are counted, spread over all of it."""
    rows = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(24 << 20, np.float32)), 1 << 16)
    table = pa.table({"x": rows, "half": [i // 192 for i in range(384)]})
    write_dataset(str(tmp_path), table, shard_samples=[384], block_bytes=4 << 20)
    with paged({"large": str(tmp_path)}) as large:
        text = large.ask("/d/large/column/1").text

    found = re.search(
        r"([\d,]+) of ([\d,]+) blocks were counted, evenly spaced, ([\d.]+) MiB", text
    )
    assert found is not None
    assert float(found[3]) <= 64
    assert int(found[1]) < int(found[2])
    # Both halves are seen.
    assert 2 == len(re.findall("<meter", text)) or "0.5" in text


def test_versions_tell_what_changed(tmp_path: Path) -> None:
    """Samples and columns that came, and how much is as it was."""
    old = pa.table({"a": list(range(100))})
    write_dataset(str(tmp_path), old, shard_samples=[100])
    new = pa.table({"a": list(range(150)), "b": ["x"] * 150})
    write_dataset(str(tmp_path), new, shard_samples=[100, 50], mode="overwrite")
    with paged({"grown": str(tmp_path)}) as grown:
        text = grown.ask("/d/grown/versions").text
        first = re.findall(r"\?v=([0-9a-f]{32})", text)[-1]
        was = grown.ask(f"/d/grown?v={first}").text

    assert "column b" in text
    assert '<bdi>100</bdi></td><td class="text"><bdi>150</bdi>' in text
    assert "<dd>100</dd>" in was


def test_versions_are_compared_by_what_blocks_hold(tmp_path: Path) -> None:
    """As many samples and bytes are no proof; blocks that moved are still the same."""
    parts = [pa.table({"a": np.arange(50) + 1000 * part}) for part in range(4)]
    orders = [[0, 1, 2], [0, 3, 2], [2, 0]]
    for order in orders:
        table = pa.concat_tables([parts[part] for part in order])
        write_dataset(
            str(tmp_path),
            table,
            shard_samples=[50] * len(order),
            block_bytes=1 << 20,
            mode="overwrite",
        )
    with paged({"red": str(tmp_path)}) as page:
        text = page.ask("/d/red/versions").text
        newest = re.findall(r'name="old" value="([0-9a-f]{32})"', text)
        second, moved = (
            page.ask(f"/d/red/versions?old={newest[old]}&new={newest[new]}").text
            for old, new in ((2, 1), (1, 0))
        )

    def cells(text: str, what: str) -> list[str]:
        row = text.partition(what)[2].partition("</tr>")[0]
        return re.findall("<td[^>]*><bdi>(.*?)</bdi>", row)

    assert ["50 of 150", "50 of 150"] == cells(second, "leading samples in the same blocks")
    assert ["100 of 150", "100 of 150"] == cells(
        second, "samples in blocks that both versions have"
    )
    assert ["0 of 150", "0 of 100"] == cells(moved, "leading samples in the same blocks")
    assert ["100 of 150", "100 of 100"] == cells(moved, "samples in blocks that both versions have")


# Orders.


def _order(url: str, **options: Any) -> tuple[Order, int]:
    with open_dataset(url) as dataset:
        return Order(OrderSpec(**options), table_of(dataset.stretches())), dataset.sample_count


def test_a_batch_is_dealt_as_the_order_deals_it(page: Paged, url: str) -> None:
    """Ranks, ids and pads are those of `headrace.order`."""
    order, count = _order(url, seed=7, unit=64, run_bytes=1 << 20, shuffle_bytes=1 << 20)
    query = {"seed": 7, "run": 1, "memory": 1, "batch": 64, "ranks": 3, "epoch": 2, "end": "pad"}
    plan = EpochPlan(count, 0, 64, EndMode.PAD)
    for step in (0, plan.batch_count - 1):
        text = page.ask(f"/d/rich/batch?{urlencode({**query, 'step': step})}").text
        for rank in range(3):
            batch = plan.batch(step, rank=rank, world_size=3)
            ids = batch_sample_ids(order, 2, batch).tolist()
            assert f"show</a> {' '.join(map(str, ids))}" in text
    assert 400 == page.ask(f"/d/rich/batch?{urlencode({**query, 'step': 10})}").status


def test_a_batch_is_dealt_by_mesh_as_the_command_deals_it(page: Paged, url: str) -> None:
    """Each rank has the places, samples and parts of sequences that `headrace order` prints."""
    mesh = ("--mesh", "dp=2,cp=2,tp=2", "--sequence", "16")
    printed = run("order", url, "--global-batch-size", "8", "--seed", "7", *mesh, "--step", "3")
    wanted = [line.split() for line in printed.stdout.splitlines()[1:]]
    query = {"seed": 7, "batch": 8, "step": 3, "ranks": "dp=2, cp=2,tp=2", "sequence": 16}

    text = page.ask(f"/d/rich/batch?{urlencode(query)}").text

    rows = re.findall(r'<tr><th scope="row" data-of="Rank">(\d+)</th>(.*?)</tr>', text, re.DOTALL)
    assert 8 == len(wanted) == len(rows)
    for (rank, row), line in zip(rows, wanted, strict=True):
        cells = re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)
        ids = ",".join(re.sub("<[^>]*>|show", "", cells[-1]).split())
        assert line == [rank, *cells[:3], ids, *cells[-2].split()]
    assert ["0-3", "4-7"] == re.findall(r"<span>ranks ([\d, -]+)</span>", text)


def test_all_ranks_of_a_mesh_that_get_an_id_are_named(page: Paged) -> None:
    """Those that differ on other axes than dp."""
    query = {"batch": 8, "ranks": "pp=2,dp=4,tp=2", "id": 17}
    text = page.ask(f"/d/rich/order?{urlencode(query)}").text

    (ranks,) = re.findall(r"</a></td><td>([^<]+)</td>", text)
    first, second = ranks.split(", ")
    assert first in {"0-1", "2-3", "4-5", "6-7"}
    assert second == "-".join(str(int(one) + 8) for one in first.split("-"))


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ("dp=2,xp=2", "mesh has the axis"),
        ("dp=2,dp=4", "each once"),
        ("dp=" + "9" * 6000, "mesh is"),
        ("dp=2,tp=99999", "at most 1024 ranks"),
        ("dp=300", "at least one sample"),
        ("x", "mesh is"),
    ],
)
def test_a_mesh_that_cannot_be_is_told(page: Paged, ranks: str, text: str) -> None:
    """In words, before anything is computed."""
    answer = page.ask(f"/d/rich/batch?{urlencode({'ranks': ranks})}")

    assert 400 == answer.status
    assert text in answer.text


def test_an_id_is_found_where_the_order_has_it(page: Paged, url: str) -> None:
    """The step, rank and row that are shown hold the id."""
    order, count = _order(url, seed=3, unit=32)
    text = page.ask("/d/rich/order?seed=3&batch=32&ranks=4&epoch=1&id=17,599").text
    rows = re.findall(
        r'sample/(\d+)\?">\d+</a></th><td><a [^>]*>([\d,]+)</a></td><td>(\d+)</td><td>(\d+)</td>',
        text,
    )

    assert ["17", "599"] == [row[0] for row in rows]
    plan = EpochPlan(count, 0, 32)
    for sample, step, rank, row in [map(int, each) for each in rows]:
        batch = plan.batch(step, rank=rank, world_size=4)
        assert sample == batch_sample_ids(order, 1, batch)[row]


def test_figures_and_composition_of_a_choice(page: Paged) -> None:
    """What is shuffled together, its price, and how even the classes come."""
    text = page.ask("/d/rich/order?label=label").text
    assert ", all of it" in text
    assert "Variance in batches of 256" in text
    assert 2 * 3 == text.count("<path class=")
    assert 2 * 8 == page.ask("/d/rich/order").text.count("<path class=")
    assert "As even as a uniform shuffle" in page.ask("/d/rich/order?label=label&epoch=1").text
    stored = page.ask("/d/rich/order?label=label&storage=1").text
    assert "times as uneven as a uniform shuffle" in stored
    assert "in the order of the storage" in stored
    assert ", all of it" not in stored
    assert 400 == page.ask("/d/rich/order?label=nothing").status
    assert 400 == page.ask("/d/rich/order?label=flags").status
    assert 200 == page.ask("/d/rich/order?storage=1&lanes=3").status


def test_a_ramp_is_named_where_it_makes_an_epoch_uneven(tmp_path: Path) -> None:
    """Not in later epochs, without it, or where there is no room for one."""
    count = 8192
    buffers = [None, pa.py_buffer(bytes(count * 5120))]
    pad = pa.FixedSizeBinaryArray.from_buffers(pa.binary(5120), count, buffers)
    table = pa.table({"label": np.arange(count) // 1024, "pad": pad})
    write_dataset(str(tmp_path), table, shard_samples=[count], block_bytes=1 << 20)
    with paged({"sorted": str(tmp_path)}) as sorted_page:
        url = "/d/sorted/order?run=1&label=label"
        found = {more: sorted_page.ask(url + more).text for more in ("", *_UNRAMPED)}

    assert "begins with a ramp" in found.pop("")
    assert ["As even", "As even", "More memory"] == [
        next((said for said in ("ramp of", "As even", "More memory") if said in text), "")
        for text in found.values()
    ]


_UNRAMPED = ("&epoch=1", "&ramp=0", "&memory=4")


def test_orders_and_batches_are_shown_without_a_ramp_on_request(page: Paged) -> None:
    """As with the other options of an order, the form keeps what was chosen."""
    for view in ("order", "batch"):
        default, without = (
            page.ask(f"/d/rich/{view}?lanes=2{each}").text for each in ("", "&ramp=0")
        )
        assert " selected>in epoch 0</option>" in default
        assert " selected>none</option>" in without
        assert 'name="lanes" inputmode="numeric" size="3" value="2"' in without


# Runs.


def _token(url: str, **changed: int) -> Token:
    with open_dataset(url) as dataset:
        fingerprint = dataset.fingerprint
    spec = OrderSpec(seed=changed.pop("seed", 0), unit=64)
    place: dict[str, Any] = {"epoch": 0, "position": 128, "step": 2, "sample_count": 128}
    return Token(fingerprint, spec, **{**place, "global_batch_size": 64, **changed})


def test_a_token_tells_where_a_run_stands(page: Paged, url: str) -> None:
    """Its step, and the samples that come next; from base64, hexadecimal and a state."""
    token = _token(url)
    raw = encode_token(token)
    order, _ = _order(url, seed=0, unit=64)
    expected = " ".join(map(str, order.sample_ids(0, 128, 192).tolist()))
    state = {"model": [{"loader": {"version": 1, "token": base64.b64encode(raw).decode()}}]}
    for text in (base64.b64encode(raw).decode(), raw.hex(), json.dumps(state)):
        sent = page.ask(
            "/run",
            method="POST",
            headers={"content-type": "application/x-www-form-urlencoded"},
            body=urlencode({"one": text, "two": ""}).encode(),
        )
        assert 303 == sent.status
        shown = page.ask(sent.headers["location"])

        assert 200 == shown.status
        assert expected in shown.text
        assert "<dt>Step</dt><dd>2</dd>" in shown.text
        assert "/d/rich?v=" in shown.text


@pytest.mark.parametrize(
    "text",
    ["x", "{}", "[[[[", '{"token": 3}', "aHJ0", "<script>", '{"token": "aHJ0AgA="}', "00" * 40],
)
def test_what_is_no_token_is_told(page: Paged, text: str) -> None:
    """In words, and with what was expected."""
    answer = page.ask(f"/run?one={quote(text)}")

    assert 400 == answer.status
    assert "token" in answer.text
    assert "<script>" not in answer.text


def test_two_runs_of_one_order_never_differ(page: Paged, url: str) -> None:
    """Wherever they stand."""
    one, two = encode_token(_token(url)), encode_token(_token(url, step=5, position=320))
    text = page.ask(f"/run?one={one.hex()}&two={two.hex()}").text

    assert "Both runs have the same order" in text


def test_two_runs_that_differ_say_where_and_why(page: Paged, url: str) -> None:
    """The step is the first whose samples differ, and every option that differs is named."""
    one, two = encode_token(_token(url)), encode_token(_token(url, seed=1))
    text = page.ask(f"/run?one={one.hex()}&two={two.hex()}").text

    assert "first differ in step <strong>0</strong>" in text
    assert "seed" in text


def test_the_first_step_that_differs_is_found(url: str) -> None:
    """Orders that agree for a while are compared step by step."""
    with open_dataset(url) as dataset:
        table = table_of(dataset.stretches())
    one, two = _token(url, global_batch_size=50), _token(url, global_batch_size=50)
    stored = replace(one, spec=replace(one.spec, shuffle=False))
    other = replace(two, spec=replace(two.spec, shuffle=False, seed=4))
    runs = [Order(each.spec, table) for each in (stored, other)]

    same = compare((stored, runs[0]), (other, runs[1]), is_one_dataset=True)
    assert same.reasons
    assert same.first_step is None
    assert same.steps_seen > 0
    assert not same.is_proven

    shuffled = replace(other, spec=replace(other.spec, shuffle=True))
    mixed = Order(shuffled.spec, table)
    found = compare((stored, runs[0]), (shuffled, mixed), is_one_dataset=True)
    assert 0 == found.first_step
    elsewhere = compare((stored, runs[0]), (other, runs[1]), is_one_dataset=False)
    assert 0 == elsewhere.first_step


def test_packed_rows_are_those_that_are_served(tmp_path: Path) -> None:
    """Document by document, each in the row of the rank that gets it, for the batch asked for."""
    lengths = np.random.default_rng(3).integers(1, 50, 400)
    documents: pa.Array[Any] = pa.array(
        [[i] * n for i, n in enumerate(lengths.tolist())], pa.list_(pa.int32())
    )
    url = str(tmp_path / "docs")
    write_dataset(url, pa.table({"tokens": documents}), shard_samples=[400])
    done = run("index", url, "--pack-length", "64")
    assert 0 == done.returncode, done.stderr

    with serving({"docs": url}) as server, paged({"docs": url}) as page:
        served = [_packed_rows(server.address, rank) for rank in range(2)]
        text = page.ask("/d/docs/batch?pack=64&batch=8&ranks=2").text

    body = text.partition("Documents: elements")[2].partition("</table>")[0]
    shown: list[list[list[int]]] = [[], []]
    for row in body.split("<tr>")[1:]:
        rank = int(row.partition('data-of="Rank">')[2].partition("<")[0])
        shown[rank].append([int(one) for one in re.findall(r"/sample/(\d+)\"", row)])
    assert served == shown


def _packed_rows(address: str, rank: int) -> list[list[int]]:
    """Return the documents of each row of a rank's part of the first batch, of 8 rows in all."""
    with NumpyDataset(
        address, "docs:64", batch_size=4, rank=rank, world_size=2, columns=["tokens.samples"]
    ) as rows:
        served: Any = next(iter(rows))["tokens.samples"]
    return [[one for one in row.tolist() if one >= 0] for row in served]
