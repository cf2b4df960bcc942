"""The `headrace` command: what it prints, and how it fails."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command import HEADRACE, Serving, run, run_new, serving
from support.datasets import small_table, write_dataset

SAMPLES = 600


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of 600 samples in three shards."""
    folder = str(tmp_path_factory.mktemp("dataset") / "small")
    write_dataset(folder, small_table(SAMPLES), shard_samples=[250, 50, 300])
    return folder


@pytest.fixture(scope="module")
def server(url: str) -> Iterator[Serving]:
    """A server of that dataset."""
    with serving({"small": url}) as running:
        yield running


def _read(server: Serving, *options: str) -> list[dict[str, object]]:
    done = run("read", server.address, "small", "--json", "--ids", *options)
    assert (0, "") == (done.returncode, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _ids(lines: list[dict[str, object]]) -> list[int]:
    ids: list[int] = []
    for line in lines:
        found = line["ids"]
        assert isinstance(found, list)
        ids += found
    return ids


def test_serve_prints_one_line_with_its_address(server: Serving) -> None:
    """Port 0 has become a real port."""
    host, port = json.loads(server.ready_line)["address"].split(":")

    assert "127.0.0.1" == host
    assert int(port) > 0


def test_read_draws_from_a_mixture(server: Serving, tmp_path: Path) -> None:
    """`--mixture FILE` takes the place of the dataset; ids are pairs, and a token resumes."""
    mixture = tmp_path / "mixture.json"
    mixture.write_text('{"datasets": [{"name": "small", "repeat": 0.5}]}')
    command = ["read", server.address, "--mixture", str(mixture), "--batch-size", "100", "--json"]

    whole = [json.loads(line) for line in run(*command, "--ids").stdout.splitlines()]
    rest = run(*command, "--ids", "--token", whole[0]["token"]).stdout.splitlines()
    text = run(*command[:-1], "--ids").stdout.splitlines()

    assert 3 == len(whole)
    assert whole[1:] == [json.loads(line) for line in rest]
    pairs = ",".join(f"{dataset}:{sample}" for dataset, sample in whole[0]["ids"])
    assert text[0].endswith(f"ids {pairs}")


def test_read_twice_prints_identical_lines(server: Serving) -> None:
    """The order is a function of the seed: ids, positions and tokens are equal.

    A process that starts anew hashes strings in another way.
    """
    command = ("read", server.address, "small", "--json", "--ids", "--seed", "7")
    new = run_new(*command)

    assert (0, "") == (new.returncode, new.stderr)
    assert new.stdout == run(*command).stdout


def test_another_seed_is_another_order(server: Serving) -> None:
    """The same samples come in another order."""
    one, other = _ids(_read(server, "--seed", "7")), _ids(_read(server, "--seed", "8"))

    assert one != other


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_the_union_over_ranks_is_the_epoch(server: Serving, world_size: int) -> None:
    """Every sample comes once, whatever the world size."""
    options = ("--global-batch-size", "64", "--end", "uneven", "--world-size", str(world_size))
    ranks = [_read(server, *options, "--rank", str(rank)) for rank in range(world_size)]

    assert list(range(SAMPLES)) == sorted(sample for rank in ranks for sample in _ids(rank))
    assert 1 == len({len(rank) for rank in ranks})


def test_read_goes_on_after_a_token(server: Serving) -> None:
    """The token of the second batch gives the third."""
    whole = _read(server, "--batch-size", "64")

    assert whole[2:] == _read(server, "--token", str(whole[1]["token"]))


def test_a_line_for_people_holds_the_same(server: Serving) -> None:
    """Epoch, step, position, samples, token and ids stand in one line."""
    options = ("--batch-size", "2", "--batches", "1", "--ids")
    text = run("read", server.address, "small", *options).stdout
    fields = _read(server, "--batch-size", "2", "--batches", "1")[0]

    ids = ",".join(map(str, _ids([fields])))
    expected = f"epoch 0  step 0  position 0  samples 2  token {fields['token']}  ids {ids}\n"
    assert expected == text


def test_inspect_shows_columns_and_counts(url: str) -> None:
    """As a table for people and as JSON for programs."""
    facts = json.loads(run("inspect", url, "--json").stdout)
    text = run("inspect", url).stdout

    assert (SAMPLES, 3) == (facts["sample_count"], facts["shard_count"])
    assert ["number", "ratio", "name", "blob", "even", "grid"] == [
        column["name"] for column in facts["columns"]
    ]
    assert facts["fingerprint"] in text


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


# No process has this number.
_KILLING = (
    *("loadtest", "ADDRESS", "small", "--end", "uneven"),
    *("--kill", str(1 << 30), "--restart"),
)

CASES = [
    pytest.param(("read", "ADDRESS", "absent"), 1, "absent", id="unknown dataset"),
    pytest.param(("read", "ADDRESS", "small", "--columns", "colour"), 2, "colour", id="column"),
    pytest.param(
        ("read", "ADDRESS", "small", "--rank", "2", "--world-size", "2"), 2, "rank is 2", id="rank"
    ),
    pytest.param(("read", "ADDRESS", "small", "--batch-size", "0"), 2, "--batch-size", id="batch"),
    pytest.param(("read", "ADDRESS", "small", "--token", "AAAA"), 2, "token", id="token"),
    pytest.param(("read", "ADDRESS", "small", "--token", "é"), 2, "base64", id="token, no ASCII"),
    pytest.param(("read", "ADDRESS", "--mixture", "BINARY"), 2, "not text", id="mixture, bytes"),
    pytest.param(("loadtest", "ADDRESS", "--mixture", "BINARY"), 2, "not text", id="load of bytes"),
    pytest.param(
        ("order", "URL", "--global-batch-size", "1", "--mixture", "BINARY"),
        2,
        "not text",
        id="order of bytes",
    ),
    pytest.param(("loadtest", "ADDRESS", "small", "--kill", "-1"), 2, "--kill", id="kill all"),
    pytest.param(
        (*_KILLING, "'"),
        2,
        "is not a command",
        id="restart, half a quote",
    ),
    pytest.param(
        (*_KILLING, "FOLDER/absent"),
        1,
        "cannot be started",
        id="restart by nothing",
    ),
    pytest.param(("cat", "URL", "--ids", "9" * 30), 2, "is not in [0, ", id="huge id"),
    pytest.param(("cat", "URL", "--ids", "0-" + "9" * 18), 2, "is not in [0, ", id="huge range"),
    pytest.param(
        ("read", "127.0.0.1:PORT", "small", "--connect-s", "0.3"),
        1,
        "no headrace server answers",
        id="unreachable",
    ),
    pytest.param(("serve", "d=FOLDER"), 1, "holds no dataset", id="serve no dataset"),
    pytest.param(("inspect", "FOLDER"), 1, "holds no dataset", id="inspect no dataset"),
    pytest.param(
        ("inspect", "FOLDER/no/such"),
        1,
        "there is no folder FOLDER/no/such on this machine, where FOLDER exists",
        id="inspect no folder",
    ),
    pytest.param(("compact", "FOLDER/such"), 1, "there is no folder", id="compact no folder"),
    pytest.param(("gc", "FOLDER/such"), 1, "there is no folder", id="gc no folder"),
    pytest.param(
        ("index", "FOLDER/such", "--to", "FOLDER/x"), 1, "there is no folder", id="index no folder"
    ),
    pytest.param(("serve", "d=FOLDER/such"), 1, "there is no folder", id="serve no folder"),
    pytest.param(("serve", "d=URL", "--listen", "ADDRESS"), 1, "in use", id="port in use"),
    pytest.param(("serve", "d"), 2, "NAME=URL", id="no url"),
    pytest.param(("serve",), 2, "NAME=URL", id="nothing to serve"),
    pytest.param(("serve", "d=URL", "d=URL"), 2, "two datasets", id="a name twice"),
    pytest.param(("convert", "FOLDER/absent.csv", "FOLDER/x"), 2, "does not exist", id="no file"),
    pytest.param(("paint",), 2, "paint", id="unknown command"),
    pytest.param(("lits",), 2, "Did you mean 'list'?", id="a typo"),
    pytest.param(("read", "feeder", "small"), 2, "pass 'feeder:50051'", id="no port"),
    pytest.param(("read", "small", "ADDRESS"), 2, "without a port", id="exchanged"),
    pytest.param(("list", "http://h:1/x"), 2, "pass 'h:1'", id="a URL"),
    pytest.param(("loadtest", "ADDRESS,h", "small"), 2, "pass 'h:50051'", id="one without a port"),
    pytest.param(("list", "127.0.0.1:PORT"), 1, "no headrace server answers", id="nobody there"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), CASES)
def test_bad_input_is_one_clear_line(
    arguments: tuple[str, ...], code: int, words: str, *, server: Serving, url: str, tmp_path: Path
) -> None:
    """Misuse exits with 2 and failure with 1; no stack trace reaches a person."""
    places = {
        "ADDRESS": server.address,
        "PORT": str(_free_port()),
        "URL": url,
        "FOLDER": str(tmp_path),
        "BINARY": str(tmp_path / "binary"),
    }
    (tmp_path / "binary").write_bytes(b"\xff")
    line = list(arguments)
    for word, place in places.items():
        line = [part.replace(word, place) for part in line]

    done = run(*line)

    assert (code, "") == (done.returncode, done.stdout)
    assert 1 == done.stderr.count("\n"), done.stderr
    assert words.replace("FOLDER", str(tmp_path)) in done.stderr


def test_a_reader_that_has_seen_enough_is_no_failure(server: Serving) -> None:
    """`headrace read … | head -1` ends quietly."""
    pipeline = f"{HEADRACE} read {server.address} small --batch-size 1 | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", pipeline],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert (0, "", 1) == (done.returncode, done.stderr, done.stdout.count("\n"))


def test_convert_makes_a_dataset_of_a_csv_file(tmp_path: Path) -> None:
    """Types are inferred, nulls are kept, and the summary is JSON for programs."""
    source = tmp_path / "points.csv"
    source.write_text("x,y,at\n1,0.5,2026-01-01 00:00:00\n2,NA,\n3,2.5,2026-01-02 00:00:00\n")
    target = str(tmp_path / "points")

    options = ("--null-value", "NA", "--json")
    done = run("convert", str(source), target, *options)
    again = run("convert", str(source), target)

    assert (0, 3) == (done.returncode, json.loads(done.stdout)["sample_count"])
    columns = json.loads(run("inspect", target, "--json").stdout)["columns"]
    assert [("x", "int64"), ("y", "double"), ("at", "timestamp[s]")] == [
        (column["name"], column["type"]) for column in columns
    ]
    assert "timestamp[s]" in run("inspect", target).stdout
    assert (1, "") == (again.returncode, again.stdout)
    assert "already contains a dataset" in again.stderr.splitlines()[-1]


def test_list_shows_what_is_served(server: Serving) -> None:
    """A line a dataset for people, an object a dataset for programs."""
    told = run("list", server.address)
    facts = json.loads(run("list", server.address, "--json").stdout)

    assert (0, "") == (told.returncode, told.stderr)
    assert told.stdout.startswith("small: 600 samples in 3 shards, ")
    assert ("small", SAMPLES, 3) == (facts["name"], facts["sample_count"], facts["shard_count"])
    assert 32 == len(facts["fingerprint"])


def test_verify_says_that_all_is_well(url: str) -> None:
    """Every block was read; exit code 0."""
    done = run("verify", url)

    assert 0 == done.returncode
    assert f"blocks match the manifest, {SAMPLES} samples" in done.stdout


def test_verify_lists_faults_and_exits_with_1(tmp_path: Path) -> None:
    """A damaged shard is a line with its place, and JSON for programs."""
    write_dataset(str(tmp_path), small_table(100), shard_samples=[50, 50])
    shard = tmp_path / "shards" / "part-00001.arrow"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)

    text, lines = run("verify", str(tmp_path)), run("verify", str(tmp_path), "--json")
    fault, summary = (json.loads(line) for line in lines.stdout.splitlines())

    assert (1, 1) == (text.returncode, lines.returncode)
    assert "part-00001.arrow" in text.stdout
    assert "SHARD_CORRUPT" == fault["reason"]
    assert fault["end_sample"] - fault["first_sample"] == summary["samples_lost"]


def test_cat_shows_the_samples_asked_for(url: str) -> None:
    """Values as JSON for programs, and a table for people."""
    lines = run("cat", url, "--ids", "0,3-4", "--columns", "number,name", "--json").stdout
    table = run("cat", url, "--ids", "7")

    assert [
        {"sample_id": 0, "number": 0, "name": ""},
        {"sample_id": 3, "number": 3, "name": ""},
        {"sample_id": 4, "number": 4, "name": "sample 4"},
    ] == [json.loads(line) for line in lines.splitlines()]
    assert (0, "sample 7") == (table.returncode, "sample 7" if "sample 7" in table.stdout else "")


def test_cat_cuts_no_value_off_in_a_narrow_terminal(url: str) -> None:
    """Where a table would not fit, each value has a line of its own."""
    narrow = run("cat", url, "--ids", "3-4", environment={**os.environ, "COLUMNS": "24"})
    lines = [line.split() for line in narrow.stdout.splitlines()]

    assert 0 == narrow.returncode
    assert ["sample", "4"] in lines
    assert ["number", "4"] in lines
    assert ["ratio", "0.571429"] in lines


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--ids", "seven"), "neither an id nor a range"),
        (("--ids", "600"), "600"),
        (("--columns", "colour"), "colour"),
    ],
)
def test_cat_refuses_what_is_not_there(url: str, options: tuple[str, ...], words: str) -> None:
    """A wrong id or column is misuse."""
    done = run("cat", url, *options)

    assert (2, 1) == (done.returncode, done.stderr.count("\n"))
    assert words in done.stderr


def test_order_prints_what_a_server_sends(server: Serving, url: str) -> None:
    """The manifest alone gives the ids of any rank at any step, counted over the run's epochs."""
    options = ("--global-batch-size", "64", "--rank", "1", "--world-size", "3", "--seed", "5")
    sent = _read(server, *options, "--epoch", "1", "--epochs", "2")
    alone = run("order", url, *options, "--epoch", "1", "--step", "7", "--batches", "4", "--json")

    told = [json.loads(line) for line in alone.stdout.splitlines()]
    assert [1, 1, 2, 2] == [line["epoch"] for line in told]
    assert told == [{name: line[name] for name in told[0]} for line in sent[7:11]]


def test_order_of_an_epoch_without_a_batch_says_so(url: str) -> None:
    """Rather than print nothing."""
    done = run("order", url, "--global-batch-size", "601")

    assert (2, "") == (done.returncode, done.stdout)
    assert "an epoch of 600 samples has no batch of 601" in done.stderr


def test_order_of_a_mixture_names_the_dataset_of_each_sample(url: str, tmp_path: Path) -> None:
    """Half of each batch comes from each of two datasets of equal weight."""
    write_dataset(str(tmp_path), small_table(200), shard_samples=[200])
    line = run(
        *("order", f"{url}=1", f"{tmp_path}=1", "--batching", "stratified"),
        *("--global-batch-size", "20", "--json"),
    ).stdout
    ids = json.loads(line)["ids"]

    assert [10, 10] == [sum(i.startswith(f"{dataset}:") for i in ids) for dataset in (0, 1)]


def test_order_takes_a_mixture_from_a_file(url: str, tmp_path: Path) -> None:
    """A printed mixture, changed, gives the draws that it says: here one dataset alone."""
    other = str(tmp_path / "other")
    write_dataset(other, small_table(200), shard_samples=[200])
    options = ("--global-batch-size", "10")
    mixture = json.loads(run("order", f"{url}=1", f"{other}=1", *options, "--print-mixture").stdout)
    mixture["datasets"][0]["proportion"] = 0.0
    path = tmp_path / "mixture.json"
    path.write_text(json.dumps(mixture))

    done = run("order", url, other, *options, "--mixture", str(path), "--json")
    swapped = run("order", other, url, *options, "--mixture", str(path))

    assert all(sample.startswith("1:") for sample in json.loads(done.stdout)["ids"])
    assert (1, 1) == (swapped.returncode, swapped.stderr.count("\n"))
    assert "in the mixture's order" in swapped.stderr


def test_order_finds_samples_on_all_ranks(url: str) -> None:
    """Rows that `--find` names hold the samples, and dropped samples are nowhere."""
    options = ("--global-batch-size", "64", "--world-size", "3", "--seed", "5", "--json")
    first = run("order", url, *options, "--rank", "1", "--step", "2")
    ids = json.loads(first.stdout)["ids"]

    found = run("order", url, *options, "--find", f"{ids[0]},{ids[-1]}")
    wrong = run("order", url, *options, "--find", "600")

    rows = [json.loads(line) for line in found.stdout.splitlines()]
    assert [(str(ids[0]), 2, 1, 0), (str(ids[-1]), 2, 1, len(ids) - 1)] == [
        (row["id"], row["step"], row["rank"], row["row"]) for row in rows
    ]
    assert (2, True) == (wrong.returncode, "no sample 600" in wrong.stderr)
