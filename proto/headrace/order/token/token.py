"""The resume token: all that a checkpoint needs to continue with the same samples.

``docs/order.md`` specifies the bytes. A token holds no rank and no world size, so any rank of any
later run can use it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import BadArgumentError, TokenMalformedError
from headrace.order.basics.checks import check_range
from headrace.order.samples.spec import ORDER_VERSION, OrderSpec
from headrace.order.slices.buckets import LEAST_BUCKETS, MOST_BUCKETS

TOKEN_VERSION: Final = ORDER_VERSION
NUMBER_LIMIT: Final = 1 << 62
"""Streams start only at numbers below it, so that no run can count beyond 63 bits."""

# The longest token of one dataset; clients may reserve this much space.
TOKEN_LIMIT_BYTES: Final = 300

_MAGIC: Final = b"hrt"
_CHECKSUM_BYTES: Final = 8
# Leaves room for everything else in a token.
TRANSFORMS_LIMIT_BYTES: Final = 120
_TITLE: Final = r"[A-Za-z0-9][A-Za-z0-9._-]*@[A-Za-z0-9][A-Za-z0-9._-]*"
_TITLES: Final = re.compile(rf"(?=.{{1,{TRANSFORMS_LIMIT_BYTES}}}\Z){_TITLE}(,{_TITLE})*")
_DIGEST: Final = re.compile("[0-9a-f]{32}")
_DIGEST_BYTES: Final = 16
_SHUFFLE: Final = 1
_MIXTURE: Final = 2
_SKIPS: Final = 4
_TRANSFORMS: Final = 8
_KEPT: Final = 16
_BUCKETS: Final = 32
_ANY_LENGTHS: Final = bytes(_DIGEST_BYTES)
_VARINT_BYTES: Final = 9
_REFUSED: Final = {
    1: "this token is for order version 1, which servers no longer serve; restart the run without "
    "it from the model's last checkpoint, and it reads samples in the order of version 2"
}
# The options that a token holds as numbers, in the order of its bytes.
_NUMBERS: Final = (
    "version",
    *(
        field.name
        for field in dataclasses.fields(OrderSpec)
        if field.name not in {"version", "shuffle"}
    ),
)
_PLACES: Final = ("epoch", "position", "global_batch_size", "step", "sample_count")


@dataclass(frozen=True, slots=True)
class Token:
    """A place in a run.

    Attributes:
        fingerprint: The fingerprint of the dataset, or the combined fingerprint of a mixture: 32
            lower-case hexadecimal digits.
        spec: The order's options.
        epoch: The epoch, in [0, 2^63); all numbers below have this range.
        position: Samples of the epoch already consumed, over all ranks.
        global_batch_size: Samples of a global batch when the token was made; a hint.
        step: Global batches since the start of the run; a hint.
        sample_count: Samples since the start of the run; a hint.
        mixture: Digest of the mixture's weights and options, 32 digits; empty for one dataset.
        skips: Digest of the list of skipped samples, 32 digits; empty without skips.
        kept: Digest of the samples that a filter keeps, 32 digits; empty without a filter.
        transforms: Names and versions of the transforms of samples, ``name@version``, separated by
            commas, at most `TRANSFORMS_LIMIT_BYTES`; empty without transforms.
        buckets: Units that are sorted by length together; 0 without buckets.
        lengths: Digest of the lengths to sort by, 32 digits; empty without buckets, and if no
            sample has been sorted yet.
    """

    fingerprint: str
    spec: OrderSpec
    epoch: int
    position: int
    global_batch_size: int
    step: int
    sample_count: int
    mixture: str = ""
    skips: str = ""
    transforms: str = ""
    kept: str = ""
    buckets: int = 0
    lengths: str = ""

    def __post_init__(self) -> None:
        _check_digest("fingerprint", self.fingerprint)
        for field in ("mixture", "skips", "kept", "lengths"):
            if getattr(self, field):
                _check_digest(field, getattr(self, field))
        if self.transforms and not _TITLES.fullmatch(self.transforms):
            raise BadArgumentError(
                f"transforms is {self.transforms[:200]!r}, must be name@version, separated by "
                f"commas, at most {TRANSFORMS_LIMIT_BYTES} characters",
                field="transforms",
            )
        for field in _PLACES:
            check_range(field, getattr(self, field), low=0, high=1 << 63)
        if self.buckets:
            check_range("buckets", self.buckets, low=LEAST_BUCKETS, high=MOST_BUCKETS + 1)
        if (self.lengths and not self.buckets) or (self.mixture and self.buckets):
            raise BadArgumentError(
                f"buckets is {self.buckets} with the lengths {self.lengths!r} and the mixture "
                f"{self.mixture!r}; buckets need a single dataset, and lengths need buckets",
                field="buckets",
            )


def encode_token(token: Token) -> bytes:
    """Encode a token in at most `TOKEN_LIMIT_BYTES`."""
    return TokenEncoder(token).encode(
        epoch=token.epoch,
        position=token.position,
        step=token.step,
        sample_count=token.sample_count,
    )


class TokenEncoder:
    """Encodes the tokens of one stream; their common part is made once.

    Args:
        token: Any token of the stream.
    """

    def __init__(self, token: Token) -> None:
        spec = token.spec
        flags = (
            _SHUFFLE * spec.shuffle
            | _MIXTURE * bool(token.mixture)
            | _SKIPS * bool(token.skips)
            | _TRANSFORMS * bool(token.transforms)
            | _KEPT * bool(token.kept)
            | _BUCKETS * bool(token.buckets)
        )
        head = bytearray(_MAGIC)
        head += bytes((spec.version, flags))
        for digest in (token.fingerprint, token.mixture, token.skips, token.kept):
            head += bytes.fromhex(digest)
        if token.buckets:
            head += bytes.fromhex(token.lengths) or _ANY_LENGTHS
            head += _varint(token.buckets)
        if token.transforms:
            head += bytes([len(token.transforms)]) + token.transforms.encode("ascii")
        for name in _NUMBERS:
            head += _varint(getattr(spec, name))
        self._head = bytes(head)
        self._global_batch_size = _varint(token.global_batch_size)
        self._hash = _hash()
        self._hash.update(self._head)

    def encode(self, *, epoch: int, position: int, step: int, sample_count: int) -> bytes:
        """Return the token of a place; its numbers are those of a `Token`, and are not checked."""
        place = (
            _varint(epoch)
            + _varint(position)
            + self._global_batch_size
            + _varint(step)
            + _varint(sample_count)
        )
        hashed = self._hash.copy()
        hashed.update(place)
        return self._head + place + hashed.digest()


def decode_token(token: bytes) -> Token:
    """Decode a token.

    Raises:
        TokenMalformedError: The bytes are not a token, damaged, or of another version. The message
            names version 1 if it is that.
    """
    _check_frame(token)
    reader = _Reader(token[:-_CHECKSUM_BYTES], len(_MAGIC) + 1)
    flags = reader.byte()
    if flags & ~(_SHUFFLE | _MIXTURE | _SKIPS | _TRANSFORMS | _KEPT | _BUCKETS):
        raise TokenMalformedError(f"the token has unknown flags {flags:#04x}")
    try:
        decoded = _read_body(reader, flags)
    except BadArgumentError as error:
        raise TokenMalformedError(
            f"the token contains an impossible value: {error.message}"
        ) from error
    reader.check_end()
    return decoded


def _check_frame(token: bytes) -> None:
    if token[: len(_MAGIC)] != _MAGIC or len(token) <= len(_MAGIC) + 1 + _CHECKSUM_BYTES:
        raise TokenMalformedError(
            f"these {len(token)} bytes are not a headrace token; they start with "
            f"{token[:4].hex()!r}; expected all bytes of a Batch.token, or what `headrace read` "
            "printed after 'token'"
        )
    if token[-_CHECKSUM_BYTES:] != _checksum(token[:-_CHECKSUM_BYTES]):
        raise TokenMalformedError(
            f"the token of {len(token)} bytes is damaged: its checksum does not match"
        )
    version = token[len(_MAGIC)]
    if version != TOKEN_VERSION:
        unknown = f"the token has version {version}, but this headrace reads only {TOKEN_VERSION}"
        raise TokenMalformedError(_REFUSED.get(version, unknown), version=version)


def _read_body(reader: _Reader, flags: int) -> Token:
    fields: dict[str, Any] = {"fingerprint": reader.digest()}
    fields["mixture"] = reader.digest() if flags & _MIXTURE else ""
    fields["skips"] = reader.digest() if flags & _SKIPS else ""
    fields["kept"] = reader.digest() if flags & _KEPT else ""
    if flags & _BUCKETS:
        lengths = reader.digest()
        fields["lengths"] = "" if lengths == _ANY_LENGTHS.hex() else lengths
        fields["buckets"] = _read_buckets(reader)
    fields["transforms"] = reader.text() if flags & _TRANSFORMS else ""
    options = {name: reader.varint() for name in _NUMBERS}
    spec = OrderSpec(shuffle=bool(flags & _SHUFFLE), **options)
    fields |= {name: reader.varint() for name in _PLACES}
    return Token(spec=spec, **fields)


def _read_buckets(reader: _Reader) -> int:
    buckets = reader.varint()
    if not buckets:
        raise TokenMalformedError("the token contains buckets without units")
    return buckets


class _Reader:
    """Reads the fields of a token one after the other, and never past its end."""

    def __init__(self, body: bytes, offset: int) -> None:
        self._body = body
        self._offset = offset

    def byte(self) -> int:
        return self._take(1)[0]

    def digest(self) -> str:
        return self._take(_DIGEST_BYTES).hex()

    def text(self) -> str:
        content = self._take(self.byte())
        if not content or not content.isascii():
            raise TokenMalformedError("the token names invalid transforms")
        return content.decode("ascii")

    def varint(self) -> int:
        number = 0
        for place in range(_VARINT_BYTES):
            byte = self.byte()
            number |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:  # noqa: PLR2004 - the bit that says that more follows
                if place and not byte:
                    break
                return number
        raise TokenMalformedError("the token contains a number with too many bytes")

    def check_end(self) -> None:
        rest = len(self._body) - self._offset
        if rest:
            raise TokenMalformedError(f"the token is {rest} bytes too long")

    def _take(self, count: int) -> bytes:
        taken = self._body[self._offset : self._offset + count]
        if len(taken) < count:
            raise TokenMalformedError("the token ends too early")
        self._offset += count
        return taken


def _varint(number: int) -> bytes:
    # Fast, because every batch has a token; most numbers of one take one to four bytes.
    if number < 1 << 7:
        return bytes((number,))
    if number < 1 << 14:
        return bytes((number & 0x7F | 0x80, number >> 7))
    if number < 1 << 21:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    if number < 1 << 28:
        low = (number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14 & 0x7F | 0x80)
        return bytes((*low, number >> 21))
    encoded = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits a byte
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _checksum(body: bytes) -> bytes:
    hashed = _hash()
    hashed.update(body)
    return hashed.digest()


def _hash() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=_CHECKSUM_BYTES, person=b"headrace-token")


def _check_digest(field: str, digest: str) -> None:
    if not _DIGEST.fullmatch(digest):
        raise BadArgumentError(
            f"{field} is {digest!r}, must be 32 lower-case hexadecimal digits", field=field
        )
