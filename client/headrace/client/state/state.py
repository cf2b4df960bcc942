"""The state of a dataset as JSON, and the checks when it is loaded: values in, values out."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict, replace

from headrace.arguments import shown
from headrace.client.state.subject import Subject
from headrace.errors import TokenMalformedError, TokenSpecChangedError
from headrace.order import EndMode, OrderSpec, Token, decode_token, spec_differences

State = dict[str, object]

_VERSION = 1


def make_state(token: bytes, *, subject: Subject, end: EndMode) -> State:
    """Write a token down as JSON-serialisable values.

    ``spec`` repeats in readable form what the token binds. Loading reads only ``mixture``, for the
    versions of its datasets, ``skips``, for servers that do not have the list, ``where``, of which
    tokens hold a digest, and ``end``, which no token holds.
    """
    content = decode_token(token)
    return {
        "version": _VERSION,
        "token": base64.b64encode(token).decode("ascii"),
        "spec": {
            "dataset": subject.title,
            "fingerprint": content.fingerprint,
            "epoch": content.epoch,
            "position": content.position,
            "step": content.step,
            "global_batch_size": content.global_batch_size,
            "end": end.value,
            **asdict(content.spec),
            **subject.to_json(),
        },
    }


def read_state(state: Mapping[str, object]) -> bytes:
    """Take the token out of a state.

    Raises:
        TokenMalformedError: It is not a state, or its token is damaged.
    """
    if not isinstance(state, Mapping):
        raise TokenMalformedError(
            f"the state is {shown(state)}, of type {type(state).__name__}; expected what "
            "state_dict() returned, a dictionary"
        )
    version, text = state.get("version"), state.get("token")
    if version != _VERSION or not isinstance(text, str):
        raise TokenMalformedError(
            f"a state with version {version!r} and keys {sorted(map(str, state))}; expected what "
            f"state_dict() returned (version {_VERSION}, with a token)"
        )
    try:
        token = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise TokenMalformedError(f"the state's token is not base64 ({error})") from error
    decode_token(token)
    return token


def saved_in(state: Mapping[str, object]) -> Mapping[str, object]:
    """Return what a state says in readable form; empty if it says nothing."""
    spec = state.get("spec")
    return spec if isinstance(spec, Mapping) else {}


def check_end(state: Mapping[str, object], end: EndMode) -> None:
    """Refuse a state of a run with another ``end``.

    Raises:
        TokenSpecChangedError: ``end`` differs; the message says how to change it on purpose.
    """
    found = saved_in(state).get("end")
    # Older states do not contain it, and are accepted.
    if found is None or found == end.value:
        return
    raise TokenSpecChangedError(
        f"end: {end.value!r} requested, but the state has {shown(found)}, so epochs would have "
        f"other samples or batches from here on: give end={shown(found)}; to change it on purpose, "
        "pass the state's token to the dataset, as resume(base64.b64decode(state['token']))",
        field="end",
    )


def refuse_worker_state(state: Mapping[str, object]) -> None:
    """Refuse the state of one DataLoader worker in place of a rank's.

    Raises:
        TokenMalformedError: It is the state of a worker.
    """
    if "worker" in state:
        raise TokenMalformedError(
            "the state belongs to one DataLoader worker; expected the state of the dataset in the "
            "main process, or of a BatchLoader"
        )


def adopt_order(wanted: OrderSpec, token: Token, *, unit_is_free: bool) -> OrderSpec:
    """Return the order to continue with: the token's, if it matches the dataset's.

    Args:
        wanted: The order of the dataset object.
        token: Where to continue.
        unit_is_free: Whether the caller has not set the unit; then it is the token's.

    Raises:
        TokenSpecChangedError: An option differs; the message names each with both values.
    """
    if unit_is_free:
        wanted = replace(wanted, unit=token.spec.unit)
    differences = spec_differences(wanted, token.spec)
    if differences:
        raise TokenSpecChangedError(
            "the state belongs to another order: " + "; ".join(differences) + ". Make the dataset "
            "with the options of the run that saved the state, or start a new run without it"
        )
    return wanted


def adopt_batch_size(
    token: Token, *, batch_size: int | None, global_batch_size: int | None, group_count: int
) -> int:
    """Return the global batch size to continue with.

    Args:
        token: Where to continue.
        batch_size: Samples per rank, if the caller gave it.
        global_batch_size: Samples over all ranks, if the caller gave it: it may change.
        group_count: The number of ranks with samples of their own.

    Raises:
        TokenSpecChangedError: ``batch_size`` would silently change the global batch.
    """
    if global_batch_size is not None:
        return global_batch_size
    found = token.global_batch_size
    if batch_size is not None and batch_size * group_count != found:
        raise TokenSpecChangedError(
            f"batch_size={batch_size} on {group_count} ranks makes a global batch of "
            f"{batch_size * group_count}, but the state has {found}: give "
            f"{_remedy(found, group_count)}",
            wanted=found,
        )
    return found


def _remedy(found: int, group_count: int) -> str:
    size, rest = divmod(found, group_count)
    keep = f"Sharding(global_batch_size={found})" if rest else f"batch_size={size}"
    return f"{keep} to keep it, or another Sharding(global_batch_size=…) to change it on purpose"
