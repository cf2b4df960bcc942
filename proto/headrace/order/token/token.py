"""The resume token: all that a checkpoint needs to continue with the same samples.

``docs/order.md`` specifies the bytes. A token holds no rank and no world size, so any rank of any
later run can use it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from dataclasses import dataclass
from typing import Final, TypeAlias

from headrace.errors import BadArgumentError, TokenMalformedError
from headrace.order.basics.checks import check_range
from headrace.order.samples.spec import ORDER_VERSION, OrderSpec

TOKEN_VERSION: Final = ORDER_VERSION
NUMBER_LIMIT: Final = 1 << 62
"""Streams start only at numbers below it, so that no run can count beyond 63 bits."""

TOKEN_LIMIT_BYTES: Final = 400
"""The longest token; clients may reserve this much space."""

Stages: TypeAlias = tuple[tuple[str, str], ...]
"""The stages of a run that a token names, in the order in which samples pass them: the name of each
and the text by which it recognises its options."""

_MAGIC: Final = b"hrt"
_CHECKSUM_BYTES: Final = 8
_STAGES_LIMIT_BYTES: Final = 280
_STAGE_NAME: Final = re.compile("[a-z][a-z0-9_]{0,30}")
_STAGE_TEXT: Final = re.compile("[ -~]{1,255}")
_DIGEST: Final = re.compile("[0-9a-f]{32}")
_DIGEST_BYTES: Final = 16
_SHUFFLE: Final = 1
_RAMP: Final = 2
_FLAGS: Final = _SHUFFLE | _RAMP
_VARINT_BYTES: Final = 9
# The options that a token holds as numbers, in the order of its bytes.
_NUMBERS: Final = (
    "version",
    *(
        field.name
        for field in dataclasses.fields(OrderSpec)
        if field.name not in {"version", "shuffle", "ramp"}
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
        stages: What its samples pass beside the order: name and text of each stage, in printable
            ASCII.
    """

    fingerprint: str
    spec: OrderSpec
    epoch: int
    position: int
    global_batch_size: int
    step: int
    sample_count: int
    stages: Stages = ()

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(self.fingerprint):
            raise BadArgumentError(
                f"fingerprint is {self.fingerprint!r}, must be 32 lower-case hexadecimal digits",
                field="fingerprint",
            )
        for field in _PLACES:
            check_range(field, getattr(self, field), low=0, high=1 << 63)
        _check_stages(self.stages)

    def stage(self, name: str) -> str:
        """Return the text of a stage; empty if the run does not have it."""
        return next((text for known, text in self.stages if known == name), "")


def stages_of(**texts: str) -> Stages:
    """Return the stages that have a text, in the order of the arguments."""
    return tuple((name, text) for name, text in texts.items() if text)


def _check_stages(stages: Stages) -> None:
    for name, text in stages:
        if not _STAGE_NAME.fullmatch(name) or not _STAGE_TEXT.fullmatch(text):
            raise BadArgumentError(
                f"the stage {name[:100]!r} has the text {text[:200]!r}; a name must be up to 31 of "
                "a-z, 0-9 and _, a letter first, and a text 1 to 255 printable ASCII characters",
                field="stages",
            )
    names = [name for name, _ in stages]
    if len(set(names)) < len(names):
        raise BadArgumentError(f"the stages {names} have a name twice", field="stages")
    size = 1 + sum(2 + len(name) + len(text) for name, text in stages)
    if size > _STAGES_LIMIT_BYTES:
        raise BadArgumentError(
            f"the stages {names} have {size} bytes in a token, must have at most "
            f"{_STAGES_LIMIT_BYTES}; use fewer, or shorter names",
            field="stages",
        )


def _encoded(stages: Stages) -> bytes:
    """Return the number of stages, and the length and characters of each name and text."""
    fields = [field.encode("ascii") for stage in stages for field in stage]
    return bytes([len(stages)]) + b"".join(bytes([len(field)]) + field for field in fields)


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
        head = bytearray(_MAGIC)
        head += bytes((spec.version, _SHUFFLE * spec.shuffle | _RAMP * spec.ramp))
        head += bytes.fromhex(token.fingerprint)
        head += _encoded(token.stages)
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
        TokenMalformedError: The bytes are not a token, damaged, or of another version, which the
            message names.
    """
    _check_frame(token)
    reader = _Reader(token[:-_CHECKSUM_BYTES], len(_MAGIC) + 1)
    flags = reader.byte()
    if flags & ~_FLAGS:
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
        raise TokenMalformedError(
            f"this token is for order version {version}, but this headrace serves only version "
            f"{TOKEN_VERSION}; continue with the headrace that made it, or restart the run without "
            "it from the model's last checkpoint",
            version=version,
        )


def _read_body(reader: _Reader, flags: int) -> Token:
    fingerprint = reader.digest()
    stages = tuple((reader.text(), reader.text()) for _ in range(reader.byte()))
    options = {name: reader.varint() for name in _NUMBERS}
    spec = OrderSpec(shuffle=bool(flags & _SHUFFLE), ramp=bool(flags & _RAMP), **options)
    places = {name: reader.varint() for name in _PLACES}
    return Token(fingerprint=fingerprint, spec=spec, stages=stages, **places)


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
        if not content.isascii():
            raise TokenMalformedError("the token names invalid stages")
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
