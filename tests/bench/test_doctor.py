"""What the doctor concludes, and from what."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from PIL import Image

from headrace.bench import Need
from headrace.bench.doctor import Pass, judge
from headrace.cli.doctor import command
from support.command import run, serving
from support.datasets import small_table, write_dataset
from support.running import server_of
from support.waiting import until


def _pass(rate: float, **hops: float) -> Pass:
    return Pass(rate, 1.0, 1.0, {"store": 0.0, "server": 0.0, "network": 0.0, **hops})


@pytest.mark.parametrize(
    ("first", "again", "fed", "hop", "said"),
    [
        (_pass(3000, server=0.5), _pass(3000, server=0.5), True, "server", "is fast enough"),
        (_pass(1100, network=0.9), _pass(1100, network=0.9), True, "network", "only just"),
        (_pass(300, store=0.9), _pass(3000, server=0.5), False, "store", "until the cache is warm"),
        (_pass(300, store=0.9), _pass(400, network=0.8), False, "network", "goes to the network"),
    ],
)
def test_conclusions(first: Pass, again: Pass, fed: object, hop: str, said: str) -> None:
    """Fed, barely fed, starving until the cache is warm, starving: each with its hop."""
    found = judge(Need(1000, 10), first, again, round_trip_ms=1.0)

    assert fed == found.fed
    assert hop == found.hop
    assert said in found.verdict
    assert bool(found.remedy) == ("is fast enough" not in said)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of 2,000 samples."""
    where = str(tmp_path_factory.mktemp("doctor") / "ds")
    write_dataset(where, small_table(2000), shard_samples=[500] * 4)
    with serving({"ds": where}) as server:
        yield server.address


def test_a_modest_job_is_fed(address: str) -> None:
    """One sample a second: exit code 0, and the hops of both passes."""
    found = run("doctor", address, "ds", "--need", "1/s", "--seconds", "0.5", "--json")
    report = json.loads(found.stdout)

    assert 0 == found.returncode, found.stderr
    assert report["fed"]
    assert {"store", "decode", "server", "network", "client", "copy", "transform"} == set(
        report["again"]["hops"]
    )
    assert report["round_trip_ms"] > 0


def test_a_greedy_job_is_not(address: str) -> None:
    """A billion samples a second: exit code 1, the hop, and what would help."""
    found = run("doctor", address, "ds", "--need", "1,000,000,000/s", "--seconds", "0.5")

    assert 1 == found.returncode
    assert "this job will wait" in found.stdout


def test_a_cache_that_is_too_small_is_named(address: str, tmp_path: Path) -> None:
    """With what the job needs, what it may use, and what to set; a large cache is not named."""
    write_dataset(str(tmp_path), small_table(2000), shard_samples=[500] * 4)
    with server_of({"ds": str(tmp_path)}, cache_bytes=16 << 10) as server:
        needs = ("ds", "--need", "1/s", "--seconds", "0.1")
        found = CliRunner().invoke(command, [server.address, *needs])
        # The next job's part is the whole cache once this one has left.
        assert until(lambda: server.stream_count == 0)
        report = json.loads(CliRunner().invoke(command, [server.address, *needs, "--json"]).stdout)
    large = CliRunner().invoke(command, [address, *needs])

    shortage = report["first"]["cache_shortage"]
    assert 16 << 10 == shortage["part_bytes"] < shortage["job_bytes"]
    assert "cache: this job needs 1 MiB of the server's cache and may use 0" in found.stdout
    assert "raise the server's cache_bytes" in found.stdout
    assert "cache:" not in large.stdout


def test_a_need_without_a_number_is_refused(address: str) -> None:
    """One line that says what is wanted."""
    found = run("doctor", address, "ds", "--need", "fast")

    assert 2 == found.returncode
    assert "expected samples per second, such as 5000/s" in found.stderr


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of images of 60 x 40, one of them cut off, behind a column of other bytes."""
    where = str(tmp_path_factory.mktemp("doctor") / "photos")
    files = []
    for shade in range(30):
        file = io.BytesIO()
        Image.new("RGB", (60, 40), (shade, 2 * shade, 0)).save(file, "JPEG")
        files.append(file.getvalue())
    files[7] = files[7][:100]
    table = pa.table(
        {
            "note": pa.array([b"no image"] * len(files), pa.binary()),
            "image": pa.array(files, pa.binary()),
        }
    )
    write_dataset(where, table, shard_samples=[len(files)])
    with serving({"photos": where}) as server:
        yield server.address


def test_images_are_counted_in_processors(photos: str) -> None:
    """The column is found, and what eight ranks take is eight times what one of them does."""
    asked = ("doctor", photos, "photos", "--need=5/s", "--batch-size=30", "--images=24")
    report = json.loads(run(*asked, "--seconds=0.2", "--ranks=8", "--json").stdout)["images"]
    said = run(*asked, "--seconds=0.2").stdout

    assert (report["column"], report["width"], report["height"]) == ("image", 60, 40)
    exact = 8 * 5 / report["images_per_s"]
    assert exact <= report["processors"] < exact + 0.1 + 1e-9
    assert "24 x 24 from 60 x 40: " in said
    assert "your rank needs 0.1 processors for images" in said


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (("{address}", "ds", "--images", "24"), "no column of the dataset contains images"),
        (("--store", "here", "--images", "24"), "leave --store out"),
        (("{address}", "ds", "--images", "0"), "not in the range"),
    ],
)
def test_images_that_are_not_there(address: str, arguments: tuple[str, ...], wanted: str) -> None:
    """What cannot be measured is said, and what to do."""
    given = [each.format(address=address) for each in arguments]
    found = run("doctor", *given, "--need", "5/s", "--seconds", "0.2")

    assert found.returncode not in {0, 1}
    assert wanted in found.stderr
