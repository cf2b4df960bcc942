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
    Stages,
    Token,
    buckets_text,
    decode_token,
    encode_token,
    spec_differences,
    split_buckets,
    stages_of,
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
    stages=st.builds(
        stages_of,
        mixture=st.just("") | _digests,
        filter=st.just("") | _digests,
        skips=st.just("") | _digests,
        transforms=st.sampled_from(["", "crop@1", "crop@1,tokens-2.x@2026_11"]),
        another=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60),
    ),
)


@given(token=_tokens)
def test_decoding_undoes_encoding(token: Token) -> None:
    """A token comes back as it was, within the limit."""
    encoded = encode_token(token)

    assert token == decode_token(encoded)
    assert len(encoded) <= TOKEN_LIMIT_BYTES


@pytest.mark.parametrize(
    "stages",
    [
        (("Mixture", "a"),),
        (("a-b", "a"),),
        (("n" * 32, "a"),),
        (("", "a"),),
        (("skips", ""),),
        (("skips", "a\n"),),
        (("skips", "é"),),
        (("skips", "a"), ("skips", "b")),
        (("skips", "a" * 256),),
        (("skips", "a" * 200), ("filter", "b" * 200)),
        tuple((f"a{number}", "a") for number in range(300)),
    ],
)
def test_what_is_no_stage_stands_in_no_token(stages: Stages) -> None:
    """Names and texts have a form and a length, and each name comes once."""
    with pytest.raises(BadArgumentError, match="stage"):
        Token("ab" * 16, OrderSpec(), 0, 0, 1, 0, 0, stages)


@given(token=_tokens, place=st.data())
def test_any_flipped_bit_is_refused(token: Token, place: st.DataObject) -> None:
    """A token in which one bit is wrong is refused."""
    encoded = bytearray(encode_token(token))
    bit = place.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[bit // 8] ^= 1 << bit % 8

    with pytest.raises(TokenMalformedError):
        decode_token(bytes(encoded))


@given(token=_tokens, place=st.data())
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
    """The largest of all numbers and the longest stages of each kind."""
    spec = OrderSpec(2**63 - 1, True, 2**42 - 1, 2**62 - 1, 2**42 - 1, 2**20, 2**42 - 1)
    most, digest = 2**63 - 1, "f" * 32
    chosen = {"filter": digest, "skips": digest, "transforms": "n" * 118 + "@1"}
    of_all = stages_of(mixture=digest, **chosen)
    bucketed = stages_of(buckets=buckets_text(65536, digest), **chosen)
    padded = stages_of(a="n" * 255, b="n" * 18)
    place = digest, spec, most, most, most, most, most

    assert 367 == len(encode_token(Token(*place, of_all)))
    assert 373 == len(encode_token(Token(*place, bucketed)))
    assert 394 == len(encode_token(Token(*place, padded))) <= TOKEN_LIMIT_BYTES


@pytest.mark.parametrize("text", ["1", "65537", "02", "2 ab", f"2 {'g' * 32}", "2 ", " 2", "two"])
def test_buckets_that_cannot_be_are_refused(text: str) -> None:
    """They have a range, and lengths are a digest."""
    with pytest.raises(TokenMalformedError, match="buckets"):
        split_buckets(text)


@pytest.mark.parametrize("buckets", [(0, ""), (2, ""), (65536, "ab" * 16)])
def test_buckets_come_back_as_they_were(buckets: tuple[int, str]) -> None:
    """With the digest of lengths, without it, and none at all."""
    assert buckets == split_buckets(buckets_text(*buckets))


@pytest.mark.parametrize("version", [1, 2, 4])
def test_tokens_of_another_version_are_refused_by_name(version: int) -> None:
    """Whoever resumes an old run learns what the token is and what to do."""
    body = bytearray(encode_token(Token("ab" * 16, OrderSpec(), 0, 0, 1, 0, 0))[:-8])
    body[3] = version
    checksum = hashlib.blake2b(body, digest_size=8, person=b"headrace-token").digest()

    with pytest.raises(TokenMalformedError, match=f"for order version {version}.*restart the run"):
        decode_token(bytes(body) + checksum)


def _golden() -> list[tuple[str, dict[str, Any]]]:
    lines = (_GOLDEN / "tokens-3.jsonl").read_text().splitlines()
    return [(line["token"], line["fields"]) for line in map(json.loads, lines)]


@pytest.mark.parametrize(("token", "fields"), _golden())
def test_golden(token: str, fields: dict[str, Any]) -> None:
    """Tokens are written and read byte for byte as before; lines are added and never changed."""
    stages = tuple((name, text) for name, text in fields["stages"])
    expected = Token(**{**fields, "spec": OrderSpec(**fields["spec"]), "stages": stages})

    assert expected == decode_token(bytes.fromhex(token))
    assert token == encode_token(expected).hex()
