"""Places that follow from tokens."""

from __future__ import annotations

from dataclasses import replace

from headrace.client.reader.reader import Place
from headrace.order import decode_token, encode_token


def place_after(token: bytes) -> Place:
    """Return the place that a token names."""
    content = decode_token(token)
    return Place(content.epoch, content.position, token)


def moved(place: Place, epoch: int, position: int) -> Place:
    """Return another place of the same run; it keeps what the run has counted so far."""
    token = place.token
    if token is not None:
        token = encode_token(replace(decode_token(token), epoch=epoch, position=position))
    return Place(epoch, position, token)
