"""What a page of the documentation takes for granted, so that its blocks can be run as printed.

Only places are put in: a bucket of the test's store for ``s3://bucket``, real servers for the
addresses, folders of the test for ``/data``, ``/etc/headrace`` and ``/run``, and a fingerprint for
``70ab…``.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pytest
import torch

import headrace.client
from headrace.bench.children import serving
from headrace.cli.group import group, run
from headrace.client import NumpyDataset, RemoteDataset
from headrace.server.stages.texts import TextSettings
from headrace.server.transports.lane import LaneSettings
from support.datasets import write_dataset
from support.images import image_bytes
from support.pages import Block, Command, commands
from support.running import server_of

_OWN_ADDRESSES = (
    "dns:///headrace:50051",
    "headrace:50051",
    "localhost:50051",
    "127.0.0.1:50051",
    "feed-0:50051",
)


@dataclass(slots=True)
class World:
    """Runs the blocks of one page.

    Attributes:
        folder: The working folder.
        bucket: The URL in place of ``s3://bucket``.
        names: What the Python blocks of the page see.
        fingerprint: In place of ``70ab…``.
        read: The datasets that blocks have made, with the batches that each has given.
        tokenizers: What servers are started with.
    """

    folder: Path
    bucket: str
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    fingerprint: str = ""
    read: dict[Any, int] = field(default_factory=dict)
    tokenizers: tuple[str, ...] = ()
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    places: dict[str, str] = field(default_factory=dict)

    def put_in(self, text: str) -> str:
        """Put the test's places into a text."""
        text = re.sub(r"--listen \S+", "--listen 127.0.0.1:0", text)
        for printed, here in self.places.items():
            text = text.replace(printed, here)
        for place in ("/data/", "/etc/headrace/", "/run/secrets/"):
            text = text.replace(place, f"{self.folder}{place}")
        text = text.replace("70ab…", self.fingerprint or "70ab…")
        return text.replace("s3://bucket", self.bucket)

    # What pages take for granted.

    def serve(self, **datasets: str) -> None:
        """Serve datasets at the addresses that pages name, on TCP and on a socket."""
        socket = f"unix:{self.folder}/server.sock"
        listen = ("127.0.0.1:0", "127.0.0.1:0", socket)
        server = self.stack.enter_context(
            server_of(
                datasets,
                listen=listen,
                plugs=(
                    TextSettings(tokenizers=self.tokenizers),
                    LaneSettings(lane="auto"),
                ),
            )
        )
        addresses = server.addresses
        self.serve_at(addresses[0])
        self.places |= {"feed-1:50051": addresses[1], "unix:/run/headrace/server.sock": socket}
        self.names["server"] = addresses[0]

    def serve_at(self, address: str) -> None:
        """Say where the server is that pages speak of."""
        self.places |= dict.fromkeys(_OWN_ADDRESSES, address)

    def dataset(self, name: str, table: pa.Table) -> str:
        """Write a dataset into the bucket."""
        url = f"{self.bucket}/{name}"
        write_dataset(url, table, shard_samples=[len(table)], block_bytes=16384)
        return url

    def images(self, name: str, *, count: int = 24) -> None:
        """Write a folder of images in folders of their classes."""
        for number in range(count):
            path = self.folder / name / ("cat", "dog")[number % 2] / f"{number:03}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image_bytes(number=number, side=16))

    # What blocks do.

    def python(self, block: Block) -> None:
        """Run a block; each dataset that it makes must give a batch."""
        text = "\n" * (block.line - 1) + self.put_in(block.text)
        said = io.StringIO()
        with contextlib.redirect_stdout(said), warnings.catch_warnings():
            # Of torch, on a machine with fewer cores than a page has workers.
            warnings.filterwarnings("ignore", "This DataLoader will create")
            exec(compile(text, block.page, "exec"), self.names)  # noqa: S102 - our own page
            for dataset in [made for made, batches in self.read.items() if not batches]:
                next(iter(dataset))
        for made in self.read:
            if made is not self.names.get("dataset"):
                made.close()  # what nobody has a name for any more would read ahead

    def shell(self, block: Block) -> None:
        """Run the commands of a block; each must end well, and print what is printed."""
        for command in commands(self.put_in(block.text)):
            self.command(command)

    def command(self, command: Command) -> None:
        """Run one command in this process; a server is asked whether it would start."""
        words, _, filtered = (list(part) for part in _parted(command.words))
        if words[0] == "serve":
            words += ["--check-config"]
        told, said = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(said):
            code = run(words)
        lines = [*told.getvalue().splitlines(), *said.getvalue().splitlines()]
        refused = any(line.startswith("headrace: ") for line in command.output)
        assert (code != 0) == refused, f"headrace {' '.join(words)}: {code}\n" + "\n".join(lines)
        for line in command.output:
            pattern = re.escape(line).replace(r"\.\.\.", ".*")
            assert any(re.fullmatch(pattern, found) for found in lines), (line, lines)
        if filtered == ["jq", "."]:
            assert [dict] * len(lines) == [type(json.loads(line)) for line in lines]

    def serve_really(self, block: Block) -> None:
        """Start what `headrace serve` starts, until the page ends."""
        (command,) = commands(self.put_in(block.text))
        urls = [word for word in command.words if "=" in word]
        datasets = dict(word.split("=", 1) for word in urls)
        assert ("serve", *urls, "--listen", "127.0.0.1:0") == command.words
        self.serve_at(self.stack.enter_context(serving(datasets)).address)


def parsed(words: tuple[str, ...]) -> None:
    """Let click take a command line to pieces, with the types of its options, and not run it."""
    command = group.get_command(click.Context(group), words[0])
    assert command is not None, words
    with command.make_context(words[0], list(words[1:])):
        """Whatever it has opened is closed."""


def _parted(words: tuple[str, ...]) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    if "|" not in words:
        return words, "", ()
    at = words.index("|")
    return words[:at], "|", words[at + 1 :]


@contextlib.contextmanager
def world(folder: Path, bucket: str, patch: pytest.MonkeyPatch) -> Iterator[World]:
    """Make one, in whose folder this process then is."""
    patch.chdir(folder)
    made = World(folder, bucket)

    patch.setattr(headrace.client, "RemoteDataset", _counting(RemoteDataset, made))
    patch.setattr(headrace.client, "NumpyDataset", _counting(NumpyDataset, made))
    with made.stack:
        yield made


def _counting(kind: type[Any], made: World) -> type[Any]:
    """Return a kind of dataset that tells how many batches it has given, and is closed at last."""

    class Counting(kind):  # type: ignore[misc] # either of two classes
        def __init__(self, *positional: Any, **named: Any) -> None:
            super().__init__(*positional, **named)
            made.read[self] = 0
            made.stack.callback(self.close)

        def __iter__(self) -> Iterator[Any]:
            for batch in super().__iter__():
                made.read[self] += 1
                yield batch

    return Counting


def flights(count: int = 3000) -> pa.Table:
    """What the pages call flights."""
    numbers = np.arange(count)
    return pa.table(
        {
            "carrier": np.array(["A", "B", "C"])[numbers % 3],
            "origin": np.array(["EWR", "JFK"])[numbers % 2],
            "distance": (numbers * 37 % 5000).astype(np.int64),
            "delay": (numbers % 61 - 30).astype(np.float32),
            "arr_delay": (numbers % 91 - 30).astype(np.float64),
        }
    )


def torch_parts() -> dict[str, Any]:
    """What loops on pages name and leave to their readers."""
    model = torch.nn.Linear(8, 1)
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "loss_function": lambda found, wanted: (found.squeeze(1) - wanted) ** 2,
        "train_step": lambda *_: None,
        "save": lambda *_: None,
    }
