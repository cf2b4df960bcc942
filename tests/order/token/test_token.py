"""Claims about the resume token."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadArgumentError, TokenMalformedError
from headrace.order import (
    TOKEN_LIMIT_BYTES,
    OrderSpec,
    Token,
    decode_token,
    encode_token,
    spec_differences,
)
from order.order_strategies import specs

_GOLDEN = Path(__file__).parent / "golden"
_digests = st.binary(min_size=16, max_size=16).map(bytes.hex)
_numbers = st.integers(0, 2**63 - 1)
_tokens = st.builds(
    Token,
    fingerprint=_digests,
    spec=specs(),
    epoch=_numbers,
    position=_numbers,
    global_batch_size=_numbers,
    step=_numbers,
    sample_count=_numbers,
    mixture=st.one_of(st.just(""), _digests),
    skips=st.one_of(st.just(""), _digests),
    transforms=st.sampled_from(
        ["", "crop@1", "crop@1,tokens-2.x@2026_11", "n" * 59 + "@1," + "m" * 55 + "@22"]
    ),
)


_bucketed = st.builds(
    lambda token, buckets, lengths: dataclasses.replace(
        token, mixture="", buckets=buckets, lengths=lengths
    ),
    _tokens,
    st.integers(2, 65536),
    st.one_of(st.just(""), _digests.filter(lambda digest: int(digest, 16) > 0)),
)


@given(token=_tokens | _bucketed)
def test_decoding_undoes_encoding(token: Token) -> None:
    """A token comes back as it was, in at most 300 bytes."""
    encoded = encode_token(token)

    assert token == decode_token(encoded)
    assert len(encoded) <= TOKEN_LIMIT_BYTES


@pytest.mark.parametrize(
    "transforms", ["crop", "crop@", "@1", "crop@1,", "a b@1", "crop@1\n", "é@1", "n" * 119 + "@1"]
)
def test_what_is_no_transform_stands_in_no_token(transforms: str) -> None:
    """Names and versions have a form and a length."""
    with pytest.raises(BadArgumentError, match="name@version"):
        Token("ab" * 16, OrderSpec(), 0, 0, 1, 0, 0, transforms=transforms)


@given(token=_tokens | _bucketed, place=st.data())
def test_any_flipped_bit_is_refused(token: Token, place: st.DataObject) -> None:
    """A token in which one bit is wrong is refused."""
    encoded = bytearray(encode_token(token))
    bit = place.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[bit // 8] ^= 1 << bit % 8

    with pytest.raises(TokenMalformedError):
        decode_token(bytes(encoded))


@given(token=_tokens | _bucketed, place=st.data())
def test_a_cut_token_is_refused(token: Token, place: st.DataObject) -> None:
    """A token that lacks bytes at its end is refused."""
    encoded = encode_token(token)

    with pytest.raises(TokenMalformedError):
        decode_token(encoded[: place.draw(st.integers(0, len(encoded) - 1))])


@given(junk=st.binary(max_size=400))
def test_junk_is_refused(junk: bytes) -> None:
    """Bytes that are no token are refused as such."""
    with pytest.raises(TokenMalformedError):
        decode_token(junk)


def test_differences_name_the_option_and_both_values() -> None:
    """A refusal can say which options differ, and how."""
    wanted = OrderSpec(seed=7, shuffle_samples=100)
    found = dataclasses.replace(wanted, seed=8, shuffle=False)

    assert (
        "seed: 7 requested, the token has 8",
        "shuffle: True requested, the token has False",
    ) == spec_differences(wanted, found)
    assert () == spec_differences(wanted, wanted)


def test_the_longest_token_has_its_limit() -> None:
    """The largest of all numbers and digests make 283 bytes, and 286 with buckets."""
    spec = OrderSpec(2**63 - 1, True, 2**42 - 1, 2**62 - 1, 2**42 - 1, 2**20, 2**42 - 1)
    most, digest = 2**63 - 1, "f" * 32
    token = Token(
        digest, spec, most, most, most, most, most, digest, digest, "n" * 118 + "@1", digest
    )
    bucketed = dataclasses.replace(token, mixture="", buckets=65536, lengths=digest)

    assert 283 == len(encode_token(token)) <= TOKEN_LIMIT_BYTES
    assert 286 == len(encode_token(bucketed)) <= TOKEN_LIMIT_BYTES


@pytest.mark.parametrize(
    "fields",
    [
        {"buckets": 1},
        {"buckets": 65537},
        {"lengths": "ab" * 16},
        {"buckets": 2, "mixture": "ab" * 16},
        {"buckets": 2, "lengths": "ab"},
    ],
)
def test_buckets_that_cannot_be_stand_in_no_token(fields: dict[str, Any]) -> None:
    """They have a range, are of one dataset, and lengths are theirs."""
    with pytest.raises(BadArgumentError):
        Token("ab" * 16, OrderSpec(), 0, 0, 1, 0, 0, **fields)


def test_a_token_of_buckets_without_units_is_refused() -> None:
    """The flag says that there are some."""
    encoded = encode_token(Token("ab" * 16, OrderSpec(), 0, 0, 1, 0, 0, buckets=2))
    at = 5 + 16 + 16
    assert encoded[at] == 2
    body = encoded[:at] + b"\0" + encoded[at + 1 : -8]
    checksum = hashlib.blake2b(body, digest_size=8, person=b"headrace-token").digest()

    with pytest.raises(TokenMalformedError, match="without units"):
        decode_token(body + checksum)


def test_tokens_of_version_1_are_refused_by_name() -> None:
    """Whoever resumes an old run learns what the token is and what to do."""
    for line in (_GOLDEN / "tokens.jsonl").read_text().splitlines():
        with pytest.raises(TokenMalformedError, match=r"is for order version 1.*restart the run"):
            decode_token(bytes.fromhex(json.loads(line)["token"]))


def _golden() -> list[tuple[str, dict[str, Any]]]:
    lines = (_GOLDEN / "tokens-2.jsonl").read_text().splitlines()
    return [(line["token"], line["fields"]) for line in map(json.loads, lines)]


@pytest.mark.parametrize(("token", "fields"), _golden())
def test_golden(token: str, fields: dict[str, Any]) -> None:
    """Tokens are written and read byte for byte as before; lines are added and never changed."""
    expected = Token(**{**fields, "spec": OrderSpec(**fields["spec"])})

    assert expected == decode_token(bytes.fromhex(token))
    assert token == encode_token(expected).hex()
