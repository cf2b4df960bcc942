"""Variables say where the server is and how to get in, if the program says nothing.

What could go wrong: a token that is sent where it is not meant to go, a server that is asked in
place of a private one, an argument that a variable overrides.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.client import Access, Mixture, MixtureEntry, Selection
from headrace.client.options.access import access_of
from headrace.client.options.addresses import addresses_of
from headrace.client.servers.private_server import PrivateEndpoints, private_server
from headrace.errors import ConfigurationError
from headrace.server.settings.config_layers import ignored_variables

SECRET = "s3cret-t0ken"  # noqa: S105 - of this test alone


@pytest.mark.parametrize(
    "dataset",
    [
        "numbers",
        Selection("numbers"),
        Mixture((MixtureEntry("a"), MixtureEntry("b.2"))),
        [("a", 1.0), ("b", 2.0)],
    ],
)
def test_names_are_asked_of_the_named_server(
    monkeypatch: pytest.MonkeyPatch, dataset: object
) -> None:
    """Of one or several; an argument is stronger."""
    monkeypatch.setenv("HEADRACE_TARGET", "one:1, unix:/two")

    assert ("one:1", "unix:/two") == addresses_of(None, dataset=dataset)
    assert ("three:3",) == addresses_of("three:3", dataset=dataset)
    monkeypatch.setenv("HEADRACE_TARGET", "")
    assert addresses_of(None, dataset=dataset) is None


@pytest.mark.parametrize(
    "dataset",
    [
        "s3://bucket/numbers",
        "./numbers",
        "/data/numbers",
        "folder/numbers",
        Selection("s3://bucket/numbers"),
        [("a", 1.0), ("s3://bucket/b", 2.0)],
        None,
        7,
    ],
)
def test_urls_still_get_a_private_server(monkeypatch: pytest.MonkeyPatch, dataset: object) -> None:
    """Which no other server could serve by such a name."""
    monkeypatch.setenv("HEADRACE_TARGET", "one:1")

    assert addresses_of(None, dataset=dataset) is None


def test_a_token_and_authorities_come_from_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token is read again for each stream, and seen nowhere; an argument is stronger."""
    token = tmp_path / "token"
    token.write_text(SECRET + "\n")
    monkeypatch.setenv("HEADRACE_TOKEN_FILE", str(token))
    monkeypatch.setenv("HEADRACE_CA_FILE", "ca.pem")
    access = access_of(None)

    assert (("authorization", f"Bearer {SECRET}"),) == access.metadata()
    token.write_text("renewed")
    assert (("authorization", "Bearer renewed"),) == access.metadata()
    assert access.tls is not None
    assert Path("ca.pem") == access.tls.ca
    assert SECRET not in repr(access)
    assert ((), None) == (access_of(Access()).metadata(), access_of(Access()).tls)


def test_a_token_that_is_not_there_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an anonymous call."""
    monkeypatch.setenv("HEADRACE_TOKEN_FILE", "/none")

    with pytest.raises(ConfigurationError, match="cannot read the token in /none"):
        access_of(None)


def test_a_private_server_is_told_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the job's own; and no server warns of a client's variables."""
    token = tmp_path / "token"
    token.write_text(SECRET)
    monkeypatch.setenv("HEADRACE_TOKEN_FILE", str(token))
    endpoints = PrivateEndpoints(private_server({"a": str(tmp_path)}), run="1")
    monkeypatch.setattr(type(endpoints.server), "address", lambda *_, **__: "unix:/x")

    assert () == endpoints.choose(0, None).access.metadata()  # type: ignore[arg-type] # not used
    names = ["HEADRACE_TARGET", "HEADRACE_TOKEN_FILE", "HEADRACE_CA_FILE"]
    assert [] == ignored_variables(dict.fromkeys(names, "x"))
