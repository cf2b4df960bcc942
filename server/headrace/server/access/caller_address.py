"""Who is at the other end of a call, as far as the connection tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import grpc

# Names that a certificate gives its owner, as gRPC has verified them.
_NAMES = ("x509_subject_alternative_name", "x509_common_name")


def subjects_of(context: grpc.ServicerContext) -> list[str]:
    """Return the names in the client's certificate; none without mutual TLS."""
    # The stubs have one value for each name; there is a sequence of them.
    found = cast("Mapping[str, Sequence[bytes]]", context.auth_context())
    return [name.decode(errors="replace") for key in _NAMES for name in found.get(key, ())]


def host_of(context: grpc.ServicerContext) -> str:
    """Return the address of the client without its port; all of a unix socket are one."""
    kind, _, rest = str(context.peer()).partition(":")
    return kind if kind == "unix" else rest.rpartition(":")[0]
