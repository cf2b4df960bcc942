"""Tests of what a server warns of at its start: once, and only of what is open."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from headrace.server import Finding, ServerConfig, check_config
from support.command import serving
from support.datasets import small_table, write_dataset

_OPEN = "may read every dataset"
_CLEAR = "in clear text"
_READ = "other users can read or change the file of tokens"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A small dataset."""
    folder = str(tmp_path / "small")
    write_dataset(folder, small_table(4), shard_samples=[4])
    return folder


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """A file of tokens that its owner alone may read."""
    path = tmp_path / "tokens.json"
    entry = {"name": "reader", "token": "a-token-of-the-test", "datasets": ["*"]}
    path.write_text(json.dumps({"tokens": [entry]}))
    path.chmod(0o600)
    return path


def _warned(config: ServerConfig) -> list[Finding]:
    return [one for one in check_config(config) if one.text.startswith("warning: ")]


@pytest.mark.parametrize(
    ("listen", "is_reached"),
    [
        ("127.0.0.1:50051", False),
        ("127.8.8.8:0", False),
        ("[::1]:50051", False),
        ("[::ffff:127.0.0.1]:50051", False),
        ("localhost:50051", False),
        ("LocalHost:50051", False),
        ("unix:/run/headrace.sock", False),
        ("127.0.0.1:1,unix:/run/headrace.sock", False),
        ("0.0.0.0:50051", True),
        ("[::]:50051", True),
        ("[::ffff:10.0.0.1]:50051", True),
        ("10.0.0.1:50051", True),
        ("localhost.example.org:50051", True),
        ("127.0.0.1:1,0.0.0.0:2", True),
    ],
)
@pytest.mark.parametrize("has_tokens", [False, True])
def test_addresses_that_others_reach_are_told(
    url: str, tokens: Path, listen: str, *, is_reached: bool, has_tokens: bool
) -> None:
    """Without anybody being told apart, or with tokens in clear text; never of loopback."""
    config = ServerConfig(
        datasets={"d": url}, listen=listen, tokens=str(tokens) if has_tokens else ""
    )

    found = _warned(config)

    expected = [] if not is_reached else [_CLEAR] if has_tokens else [_OPEN]
    assert len(expected) == len(found)
    assert all(text in one.text for text, one in zip(expected, found, strict=True))
    # The address that is meant, and no other; a server would start with it.
    assert all(one.is_good and "127.0.0.1:1" not in one.text for one in found)


@pytest.mark.parametrize(
    ("mode", "is_told"),
    [(0o600, False), (0o440, False), (0o604, True), (0o644, True), (0o660, True), (0o602, True)],
)
def test_a_file_of_tokens_that_others_can_read_is_told(
    url: str, tokens: Path, mode: int, *, is_told: bool
) -> None:
    """Its name and mode; a group that reads is how Kubernetes mounts secrets for a pod's user."""
    tokens.chmod(mode)
    config = ServerConfig(datasets={"d": url}, tokens=str(tokens))

    expected = [f"warning: {_READ} {tokens}, whose mode is {mode:04o}"] if is_told else []
    assert expected == [one.text.partition(";")[0] for one in _warned(config)]


@pytest.mark.parametrize(("cache_bytes", "is_told"), [(1, True), (1 << 20, False)])
def test_a_cache_that_holds_no_block_is_told(url: str, cache_bytes: int, *, is_told: bool) -> None:
    """A server would start with it, since blocks may be smaller than usual."""
    found = _warned(ServerConfig(datasets={"d": url}, cache_bytes=cache_bytes))

    assert [is_told] * len(found) == [
        one.is_good and "cache_bytes is 1," in one.text for one in found
    ]
    assert is_told == bool(found)


def test_tls_keeps_tokens_to_themselves(url: str, tokens: Path, tmp_path: Path) -> None:
    """There is nothing to tell but that other users can read the private key."""
    key = tmp_path / "key.pem"
    key.touch(0o644)
    config = ServerConfig(
        datasets={"d": url},
        listen="0.0.0.0:0",
        tokens=str(tokens),
        tls_cert=str(key),
        tls_key=str(key),
    )

    assert [f"warning: other users can read or change the private key {key}"] == [
        one.text.partition(",")[0] for one in _warned(config)
    ]
    key.chmod(0o400)
    assert [] == _warned(config)


@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.long)])
def test_a_server_warns_once(url: str, tokens: Path, tmp_path: Path, workers: str) -> None:
    """One line each at its start, by the supervisor where there are workers; and it serves."""
    tokens.chmod(0o644)
    log = tmp_path / "log"
    options = ("--listen", "0.0.0.0:0", "--tokens", str(tokens), "--workers", workers)

    with log.open("w") as stderr, serving({"d": url}, *options, stderr=stderr):
        pass

    lines = [line for line in log.read_text().splitlines() if re.search(r"\bWARNING\b", line)]
    assert [1, 1] == [sum(text in line for line in lines) for text in (_CLEAR, _READ)]
    assert 2 == len(lines)
    assert "a-token-of-the-test" not in log.read_text()
