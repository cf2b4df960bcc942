"""Let all ranks of a launcher's job read the same versions, on however many machines they run.

Each machine has a private server of its own, and each server finds out by itself which version is
the newest. So the ranks agree through the key-value store of torch's launcher, which every one of
them reaches at ``MASTER_ADDR:MASTER_PORT``: the first rank puts down what its server found, and all
others read that.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

_LOG = logging.getLogger("headrace.client")
_TIMEOUT_S = 5.0  # arbitrary: one question to a process that answers in a millisecond
_MAKER = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")


def agreed_versions(
    run: str, versions: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the versions that the first rank of the job found.

    Without a store, such as in a job of MPI or on one machine, they are those given.

    Args:
        run: Names what reads, equally on all ranks.
        versions: The fingerprints that this machine's server found, by name.
        environment: The launcher's variables.
    """
    own = dict(versions)
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    ranks, local = (environment.get(name) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if not (own and address and port.isdecimal()) or ranks in {None, "1", local}:
        return own
    key = "/".join(["headrace", *(environment.get(name, "") for name in _MAKER), run])
    try:
        said = _first(address, int(port), key, json.dumps(own))
        found = {str(name): str(version) for name, version in json.loads(said).items()}
    except (OSError, RuntimeError, ValueError, AttributeError) as error:
        _LOG.warning(
            "whether all ranks read the same version is not known, since the store of the launcher "
            "at %s:%s does not answer (%s); append to a dataset only between jobs",
            *(address, port, error),
        )
        return own
    return found if found.keys() == own.keys() else own


def _first(address: str, port: int, key: str, value: str) -> str:
    """Return what was put down under a key first, which may be ``value``."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined] # noqa: PLC0415 - torch is late

    # torch tries for as long as it may, and logs; so it only tries where somebody listens.
    socket.create_connection((address, port), timeout=_TIMEOUT_S).close()
    store: Any = TCPStore(
        address, port, timeout=timedelta(seconds=_TIMEOUT_S), wait_for_workers=False
    )
    said: bytes = store.compare_set(key, "", value)
    return said.decode()
