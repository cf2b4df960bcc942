"""Tests of URLs in messages: what may be a secret is hidden, what names a place is not."""

from __future__ import annotations

import pytest

from headrace.errors import BadArgumentError
from headrace.storage import open_store, safe_url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://me:word@host/p?token=x#f", "https://(hidden)@host/p?(hidden)#f"),
        ("https://token@host/p", "https://(hidden)@host/p"),
        ("sftp://me:word@host/p", "sftp://(hidden)@host/p"),
        ("abfs://container@account.dfs.core.windows.net/p", None),
        ("s3://bucket/p", None),
        ("/a/path?odd", None),
        (
            "cannot open 'https://a:b@h/p?q=1': refused",
            "cannot open 'https://(hidden)@h/p?(hidden)': refused",
        ),
        ("", None),
    ],
)
def test_what_may_be_a_secret_is_hidden(url: str, expected: str | None) -> None:
    """Passwords, users of HTTP and queries go; schemes, hosts, containers and paths stay."""
    assert (url if expected is None else expected) == safe_url(url)


@pytest.mark.parametrize(
    "url", ["nope://me:pass-word@host/p?token=to-ken", "s3://me:pass-word@bucket/p"]
)
def test_refused_urls_show_no_secret(url: str) -> None:
    """A URL that cannot be opened is named without its credentials."""
    with pytest.raises(BadArgumentError) as caught:
        open_store(url)

    assert "(hidden)@" in str(caught.value)
    assert not any(secret in str(caught.value) for secret in ("pass-word", "to-ken"))
