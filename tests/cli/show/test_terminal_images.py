"""`headrace cat` shows images: on a page, in a picture and in terminals; nulls are no zeros."""

from __future__ import annotations

import base64
import io
import re
import struct
import zlib
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from headrace.cli.show.terminal_images import image_protocol, sequence
from headrace.cli.show.texts import value_text
from support.datasets import write_dataset

EVIL = "<script>alert('x')</script>\x1b]0;owned\x07\nnext"


def _file(form: str, colour: str, side: int = 40) -> bytes:
    sink = io.BytesIO()
    Image.new("RGB", (side, side // 2), colour).save(sink, form)
    return sink.getvalue()


def _bomb() -> bytes:
    """A PNG of some hundred bytes that says it has 60,000 x 60,000 pixels."""
    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(bytes(100))), (b"IEND", b"")]
    parts = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


FILES = [_file("PNG", "red"), _file("JPEG", "blue"), None, b"\xff\xd8\xff broken", _bomb(), b""]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Six samples: files, arrays of pixels, numbers and texts, with nulls and zeros."""
    folder = str(tmp_path_factory.mktemp("pictures") / "d")
    pixels = np.zeros((6, 4, 4), np.uint8)
    pixels[0] = 255
    rows = [None if number == 3 else row.tolist() for number, row in enumerate(pixels)]
    table = pa.table(
        {
            "file": pa.array(FILES, pa.binary()),
            "raster": pa.array(rows, pa.list_(pa.list_(pa.uint8(), 4), 4)),
            "number": pa.array([0, None, 2, 3, 4, 5], pa.int64()),
            "text": pa.array(["", None, "null", EVIL, "e", "f"]),
        }
    )
    write_dataset(folder, table, shard_samples=[6])
    return folder


def _cat(*arguments: str, code: int = 0) -> None:
    from headrace.cli.group import run  # noqa: PLC0415

    assert code == run(["cat", *arguments])


class _Page(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.addresses: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the tag, and whatever it refers to."""
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            if name == "src":
                self.sources.append(value or "")
            elif name in ("href", "action", "data", "srcset"):
                self.addresses.append(value or "")

    def handle_data(self, data: str) -> None:
        """Note it."""
        self.text += data


def test_a_page_holds_its_images_and_nothing_that_runs(url: str, tmp_path: Path) -> None:
    """Each image is in the page, byte by byte; what a dataset holds is text and no markup."""
    _cat(url, "--html", str(tmp_path / "page.html"))
    content = (tmp_path / "page.html").read_text()
    page = _Page()
    page.feed(content)

    assert "script" not in page.tags
    assert [] == page.addresses
    assert all(source.startswith("data:image/") for source in page.sources)
    files = [
        base64.b64decode(source.partition("base64,")[2])
        for source in page.sources
        if "image/jpeg" in source or "image/png" in source
    ]
    assert all(file in files for file in (FILES[0], FILES[1]))
    assert "<script>alert('x')</script>\\x1b]0;owned\\x07\\nnext" in page.text
    assert "default-src 'none'" in content
    assert not any(letter in content for letter in "\x1b\x07")


def test_a_page_tells_nulls_from_zeros(url: str, tmp_path: Path) -> None:
    """A black image is an image; no image at all says so."""
    _cat(url, "--html", str(tmp_path / "page.html"), "--columns", "raster,number,text")
    content = (tmp_path / "page.html").read_text()

    assert 5 == content.count("<img")
    assert 1 == content.count("<div class='none'>raster: null</div>")
    assert 2 == content.count("<dd class='null'>null</dd>")
    assert "<dt>number</dt><dd>0</dd>" in content
    assert "<dt>text</dt><dd>null</dd>" in content
    assert "<dt>text</dt><dd>&quot;&quot;</dd>" in content


def test_a_picture_has_a_tile_an_image(url: str, tmp_path: Path) -> None:
    """Colours where they belong; a null, a broken file and a bomb are tiles without one."""
    _cat(url, "--png", str(tmp_path / "grid.png"), "--columns", "file")
    with Image.open(tmp_path / "grid.png") as grid:
        size = grid.size
        middles = [
            grid.getpixel((8 + 96 + 200 * (n % 3), 8 + 96 + 214 * (n // 3))) for n in range(6)
        ]

    assert (3 * 200 + 8, 2 * 214 + 8) == size
    assert (255, 0, 0) == middles[0]
    red, green, blue = middles[1]  # type: ignore[misc] # three channels
    assert (red < 10, green < 10, blue > 245) == (True, True, True)
    assert {(255, 255, 255), (221, 221, 221)} >= set(middles[2:])


def test_a_picture_without_images_is_refused(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what would be one."""
    _cat(url, "--png", str(tmp_path / "x.png"), "--columns", "number", code=2)

    assert "contain no images" in capsys.readouterr().err
    assert not (tmp_path / "x.png").exists()


@pytest.mark.parametrize("option", ["--png", "--html"])
def test_a_file_that_cannot_be_written_is_named(
    url: str, tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, with the reason."""
    _cat(url, option, str(tmp_path / "absent" / "x"), code=1)

    assert "cannot be written (No such file or directory)" in capsys.readouterr().err


def test_a_table_tells_nulls_from_what_looks_like_them(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And shows no letter that a terminal would obey."""
    _cat(url, "--columns", "number,text", "--ids", "0,1,3")
    shown = capsys.readouterr().out

    assert re.search(r"0 +│ 0 +│ \"\"", shown)
    assert re.search(r"1 +│ null +│ null", shown)
    assert "\\x1b]0;owned" in shown
    assert "\x1b]0;owned" not in shown


KITTY = {"TERM": "xterm-kitty"}
ITERM = {"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        (KITTY, "kitty"),
        ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "1"}, "kitty"),
        ({"TERM": "xterm-ghostty"}, "kitty"),
        (ITERM, "iterm"),
        ({"TERM": "xterm-256color", "LC_TERMINAL": "iTerm2"}, "iterm"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "WezTerm"}, "iterm"),
        ({"TERM": "xterm-256color"}, None),
        ({**KITTY, "TMUX": "default,1,0"}, None),
        ({**ITERM, "TERM": "screen-256color"}, None),
        ({**KITTY, "TERM": "dumb"}, None),
        ({}, None),
    ],
)
def test_terminals_that_show_images_are_known_by_the_environment(
    environment: dict[str, str], wanted: str | None
) -> None:
    """And what is not a terminal gets none."""
    assert wanted == image_protocol(environment, is_terminal=True)
    assert image_protocol(environment, is_terminal=False) is None


def test_kitty_gets_an_image_in_chunks() -> None:
    """Of 4,096 letters at most, the last of which says that it is the last."""
    png = bytes(range(256)) * 40

    found = re.findall(r"\x1b_G([^;]*);([^\x1b]*)\x1b\\", sequence(png, "kitty"))

    assert png == base64.b64decode("".join(content for _, content in found))
    assert all(len(content) <= 4096 for _, content in found)
    assert "a=T,f=100,q=2,r=8,m=1" == found[0][0]
    assert ["m=1", "m=0"] == [options for options, _ in found[-2:]]


def test_iterm_gets_an_image_at_once() -> None:
    """With its size, and inline."""
    (found,) = re.findall(r"\x1b]1337;File=([^:]*):([^\x07]*)\x07", sequence(b"png", "iterm"))

    assert "inline=1;size=3;height=8;preserveAspectRatio=1" == found[0]
    assert b"png" == base64.b64decode(found[1])


def test_images_follow_the_table_in_such_a_terminal(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that can be drawn, each with its sample; none with --no-images."""
    monkeypatch.setenv("TERM", "xterm-kitty")
    monkeypatch.delenv("TMUX", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    _cat(url, "--columns", "file")
    shown = capsys.readouterr().out
    _cat(url, "--columns", "file", "--no-images")
    plain = capsys.readouterr().out

    assert 2 == shown.count("a=T,f=100")
    assert ["0", "1"] == re.findall(r"^sample (\d), file", shown, re.MULTILINE)
    assert "\x1b_G" not in plain


def test_values_that_are_none_say_null() -> None:
    """Nothing else reads so."""
    shown = [value_text(value) for value in (None, 0, 0.0, "", b"", False, [], [None, 1])]

    assert ["null", "0", "0", '""', "(0 bytes)", "False", "[]", "[null, …] 2"] == shown
