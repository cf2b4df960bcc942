"""Tests of how `headrace read` gets in: TLS, client certificates and bearer tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trustme

from support.command import run, serving
from support.datasets import small_table, write_dataset

_TOKEN = "of-the-reader-0123456789"  # noqa: S105 - of this test alone


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, certificates for both ends, and a file of tokens."""
    path = tmp_path_factory.mktemp("access")
    write_dataset(str(path / "d"), small_table(20), shard_samples=[20])
    authority = trustme.CA()
    authority.cert_pem.write_to_path(path / "ca.pem")
    for name in ("localhost", "trainer"):
        leaf = authority.issue_cert(name)
        leaf.private_key_pem.write_to_path(path / f"{name}.key")
        leaf.cert_chain_pems[0].write_to_path(path / f"{name}.pem")
    (path / "token").write_text(f"{_TOKEN}\n")
    entry = {"name": "reader", "token": _TOKEN, "datasets": ["d"]}
    (path / "tokens.json").write_text(json.dumps({"tokens": [entry]}))
    return path


def test_reading_with_tls_a_certificate_and_a_token(folder: Path) -> None:
    """With all three a read succeeds; without any one of them it ends in one line that says why."""
    names = {"cert": "localhost.pem", "key": "localhost.key", "client-ca": "ca.pem"}
    serve = [f"--tls-{option}={folder}/{name}" for option, name in names.items()]
    certificate = ("--tls-cert", f"{folder}/trainer.pem", "--tls-key", f"{folder}/trainer.key")
    authority = ("--tls-ca", f"{folder}/ca.pem")
    token = ("--token-file", f"{folder}/token")

    with serving(
        {"d": str(folder / "d")}, *serve, f"--tokens={folder}/tokens.json", listen="localhost:0"
    ) as server:
        read = ("read", server.address, "d", "--batch-size", "10", "--connect-s", "3")
        good = run(*read, *authority, *certificate, *token)
        unnamed = run(*read, *authority, *certificate)
        strange = run(*read, *authority, *token)

    assert (0, 2) == (good.returncode, len(good.stdout.splitlines()))
    assert (1, 1) == (unnamed.returncode, strange.returncode)
    assert "no bearer token or certificate that this server knows" in unnamed.stderr
    assert 1 == len(strange.stderr.splitlines())
    assert "asks for a client certificate, and this client has none" in strange.stderr
    assert _TOKEN not in good.stdout + good.stderr + unnamed.stderr + strange.stderr


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (("--tls-cert", "x"), 2, "give both, or neither"),
        (("--tls-ca", "/nowhere"), 1, "cannot be read"),
        (("--token-file", "/nowhere"), 1, "cannot read the token in /nowhere"),
    ],
)
def test_what_lets_nobody_in_is_one_clear_line(
    options: tuple[str, ...], code: int, text: str
) -> None:
    """Half a pair and files that are not there are told before anything travels."""
    done = run("read", "localhost:1", "d", *options)

    assert (code, 1) == (done.returncode, len(done.stderr.splitlines()))
    assert text in done.stderr
