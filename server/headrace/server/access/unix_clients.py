"""Accept clients on a unix socket, even when this process has no free descriptor for them."""

from __future__ import annotations

import socket
import time

# How long to wait for a free descriptor or memory before the next client is accepted (arbitrary).
_PAUSE_S = 0.1


def accept(listener: socket.socket) -> socket.socket | None:
    """Return the connection of the next client, which does not block; None if there is none now."""
    try:
        connection, _ = listener.accept()
    except (BlockingIOError, ConnectionAbortedError):
        return None
    except OSError:
        # The client is still waiting, so the listener would be ready again at once.
        time.sleep(_PAUSE_S)
        return None
    connection.setblocking(False)
    return connection
