"""The lane's door, and its channel: who may stay, and which waits end."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
import trustme

from headrace.errors import ConfigurationError
from headrace.server.settings.server_config import ServerConfig
from headrace.server.transports.lane import LaneSettings, Plug
from headrace.server.transports.lane.channel import LaneChannel
from headrace.server.transports.lane.door import MOST_STRANGERS, LaneDoor
from headrace.server.transports.lane.encryption import Encryption
from support.waiting import until


class _Counted:
    """Counts refusals."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()

    def refused(self, reason: str) -> None:
        """Count one."""
        self.reasons[reason] += 1


@pytest.fixture(params=["plain", "tls"])
def door(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[LaneDoor, _Counted]]:
    """A door at which little patience is had."""
    encryption = None
    if request.param == "tls":
        found = trustme.CA().issue_cert("localhost")
        found.cert_chain_pems[0].write_to_path(str(tmp_path / "cert"))
        found.private_key_pem.write_to_path(str(tmp_path / "key"))
        encryption = Encryption(str(tmp_path / "cert"), str(tmp_path / "key"), "")
    counted = _Counted()
    listener = socket.create_server(("127.0.0.1", 0))
    opened = LaneDoor([listener], encryption=encryption, observer=counted, hello_s=0.3)
    with closing(opened):
        opened.start()
        yield opened, counted


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01", b"HRLANE\x00\x01"])
def test_who_does_not_finish_a_hello_is_closed(
    door: tuple[LaneDoor, _Counted], said: bytes
) -> None:
    """Also in the middle of a handshake of TLS."""
    with socket.create_connection(("127.0.0.1", door[0].port), 30) as client:
        client.sendall(said)
        heard = b""
        with suppress(ConnectionResetError):  # as where the server has not read all of it
            heard = client.recv(1)

    assert b"" == heard
    assert until(lambda: sum(door[1].reasons.values()))


def test_the_oldest_of_the_busiest_address_makes_room(door: tuple[LaneDoor, _Counted]) -> None:
    """One that came first from another address stays."""
    opened, counted = door
    place = ("127.0.0.1", opened.port)
    with socket.create_connection(place, 30, ("127.0.0.9", 0)) as first:
        others = [socket.create_connection(place, 30) for _ in range(MOST_STRANGERS + 8)]
        is_crowded = until(lambda: counted.reasons["crowded"], timeout_s=5, every_s=0.01)
        first.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            first.recv(1)
        for each in others:
            each.close()

    assert is_crowded


def _pair() -> tuple[LaneChannel, socket.socket]:
    mine, theirs = socket.socketpair()
    return LaneChannel(mine), theirs


def test_a_wait_for_a_client_ends_when_it_is_woken() -> None:
    """And all later ones; nothing is said to be sent that was not."""
    channel, client = _pair()
    with closing(client), closing(channel):
        found: list[bool] = []
        sending = threading.Thread(target=lambda: found.append(channel.send(bytes(64 << 20))))
        sending.start()
        client.recv(1000)
        channel.wake()
        sending.join(60)

        assert [False] == found
        assert not channel.send(b"more")


def test_a_message_that_takes_long_is_late_once_and_arrives() -> None:
    """So that its turn is over, while it waits on."""
    channel, client = _pair()
    late: list[float] = []
    message = bytes(range(256)) * (16 << 10)
    with closing(client), closing(channel):
        received = bytearray()

        def receive() -> None:
            until(lambda: late, every_s=0.001)
            time.sleep(0.02)
            while len(received) < len(message) + 3:
                received.extend(client.recv(1 << 20))

        receiving = threading.Thread(target=receive)
        receiving.start()
        began = time.monotonic()
        is_sent = channel.send(
            b"abc", message, on_late=lambda: late.append(time.monotonic() - began), late_s=0.01
        )
        receiving.join(60)

    assert is_sent
    assert 1 == len(late)
    assert late[0] >= 0.01
    assert b"abc" + message == received


def test_a_broken_connection_is_an_error() -> None:
    """Not an end."""
    channel, client = _pair()
    client.close()
    with closing(channel), pytest.raises(OSError, match=r"pipe|reset"):
        channel.send(b"abc")


@pytest.mark.parametrize("lane", ["", "65536", "1.5", "-1", "on"])
def test_other_ports_are_refused(lane: str) -> None:
    """With what is wanted."""
    with pytest.raises(ConfigurationError, match="expected a port, auto or off"):
        LaneSettings(lane=lane)


def test_each_worker_has_a_port_of_its_own() -> None:
    """From gRPC's plus 2 on, or from the one that is given."""
    assert range(50053, 50054) == LaneSettings(lane="auto").ports(50051)
    assert range(50053, 50057) == LaneSettings(lane="auto").of_worker(4).ports(50051)
    assert range(6000, 6004) == LaneSettings(lane="6000").of_worker(4).ports(50051)
    assert range(1) == LaneSettings(lane="0").of_worker(4).ports(50051)
    assert not LaneSettings().is_on


def test_lanes_take_a_quarter_of_the_files_at_most() -> None:
    """One for each stream, and those without a ticket; none without a port."""
    on = (LaneSettings(lane="auto"),)
    config = ServerConfig(datasets={"a": "/a"}, plugs=on, max_streams=100)
    unix = ServerConfig(datasets={"a": "/a"}, plugs=on, listen="unix:/s")

    assert 100 + MOST_STRANGERS == Plug.files(config, 4096)
    assert 160 == Plug.files(config, 640)
    assert [0, 0, 0] == [
        Plug.files(config, 4 * MOST_STRANGERS),
        Plug.files(unix, 4096),
        Plug.files(ServerConfig(datasets={"a": "/a"}), 4096),
    ]
