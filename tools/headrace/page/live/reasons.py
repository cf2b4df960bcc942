"""Put the reasons of errors into words, and say what to do about them."""

from __future__ import annotations

from typing import Final

from headrace.cli.show.texts import counted
from headrace.page.live.history import Mark

_RESTORE: Final = "restore the dataset's files or convert it again, then load the last state"
_LOG: Final = "the server's log has the details"
_KNOWN: Final = {
    "BAD_CONFIGURATION": ("a block does not fit the cache", "raise cache_bytes"),
    "DRAINING": ("the server shuts down", "nothing to do"),
    "INTERNAL": ("a bug of headrace", f"{_LOG}; please report it"),
    "MANIFEST_CORRUPT": ("the manifest is damaged or incomplete", _RESTORE),
    "OBJECT_NOT_FOUND": ("a shard is missing", _RESTORE),
    "PAYLOAD_LIMIT": ("no memory for batches", "add replicas, or read smaller batches"),
    "REBALANCE": ("streams move to other servers", "nothing to do"),
    "SERVER_BUSY": ("too many calls at once", "add replicas"),
    "SHARD_CORRUPT": ("a shard is damaged", _RESTORE),
    "STAGE_FAILED": ("a stage failed on a batch", "the trainer's error names the stage"),
    "STORE_REFUSED": ("the store refuses the server", "check the server's credentials"),
    "STORE_UNAVAILABLE": (
        "the store throttles or does not answer (503, timeouts)",
        "check the store; clients try again",
    ),
    "STREAM_LIMIT": ("too many streams", "add replicas"),
    "TOKEN_DATASET_CHANGED": (
        "the dataset was replaced",
        "restore the version of the run, or start a new one",
    ),
    "UNAUTHENTICATED": ("a token is not accepted", "check the trainer's token"),
}


def words_of(reason: str) -> str:
    """Return a reason in words; one that is not known here, in small letters."""
    return _KNOWN.get(reason, (reason.replace("_", " ").lower(), ""))[0]


def advice_on(reason: str) -> str:
    """Return what to do about a reason."""
    return _KNOWN.get(reason, ("", _LOG))[1]


def event_of(mark: Mark) -> str:
    """Return an event in words."""
    if not mark.of:
        return mark.what
    happened = {"read": "of the store failed", "call": "failed", "stream": "ended"}[mark.of]
    return f"{counted(mark.count, mark.of)} {happened}: {words_of(mark.what)} ({mark.what})"
