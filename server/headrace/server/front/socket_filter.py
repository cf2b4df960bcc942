"""Have the kernel drop the first packet of each connection from some networks.

A listening socket takes a filter, which is a small program for the kernel's packet filter (BPF).
Every process may attach one to its own sockets. It sees a packet from its TCP header on, and the IP
header at an offset of its own. Packets of connections that stand already are let through.

*Source:* ``Documentation/networking/filter.rst`` and ``include/uapi/linux/filter.h`` of Linux.
"""

from __future__ import annotations

import ctypes
import ipaddress
import socket
import struct
from collections.abc import Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MOST_NETWORKS = 256
"""The kernel takes 4,096 instructions, of which a network takes five at most."""

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
# Codes of instructions; each has two jumps, for true and for false, and a value.
_LOAD_WORD, _LOAD_BYTE, _AND = 0x20, 0x30, 0x54
_IF_EQUAL, _IF_ANY, _JUMP, _RETURN = 0x15, 0x45, 0x05, 0x06
_FLAGS, _SYN = 13, 2
_IP_HEADER = 0xFFF00000
_VERSION, _IPV4 = 0xF0, 0x40
_SOURCE_IPV4, _SOURCE_IPV6 = _IP_HEADER + 12, _IP_HEADER + 8
_WHOLE, _NOTHING = 0xFFFFFFFF, 0

_Instruction = tuple[int, int, int, int]
_LET_THROUGH: _Instruction = (_RETURN, 0, 0, _WHOLE)
_DROP: _Instruction = (_RETURN, 0, 0, _NOTHING)


def network_of(host: str) -> Network:
    """Return what is kept out for a client: its address, or of IPv6 the 64 bits of its network.

    Raises:
        ValueError: It is no address.
    """
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    bits = 32 if isinstance(address, ipaddress.IPv4Address) else 64
    return ipaddress.ip_network((address, bits), strict=False)


def keep_out(listener: socket.socket, networks: Sequence[Network]) -> None:
    """Let no connection come from some networks, and from all others again.

    Args:
        listener: Of TCP.
        networks: As `network_of` returns them, at most `MOST_NETWORKS`.

    Raises:
        OSError: The kernel takes no filter.
    """
    if not networks:
        listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        return
    found = _program(networks)
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in found))
    program = struct.pack("@HP", len(found), ctypes.addressof(code))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def _program(networks: Sequence[Network]) -> list[_Instruction]:
    ipv4: list[_Instruction] = [(_LOAD_WORD, 0, 0, _SOURCE_IPV4)]
    ipv6: list[_Instruction] = []
    for one in networks:
        if isinstance(one, ipaddress.IPv4Network):
            ipv4 += [(_IF_EQUAL, 0, 1, int(one.network_address)), _DROP]
            continue
        high, low = divmod(int(one.network_address) >> 64, 1 << 32)
        ipv6 += [
            (_LOAD_WORD, 0, 0, _SOURCE_IPV6),
            (_IF_EQUAL, 0, 3, high),
            (_LOAD_WORD, 0, 0, _SOURCE_IPV6 + 4),
            (_IF_EQUAL, 0, 1, low),
            _DROP,
        ]
    return [
        (_LOAD_BYTE, 0, 0, _FLAGS),
        (_IF_ANY, 1, 0, _SYN),
        _LET_THROUGH,
        (_LOAD_BYTE, 0, 0, _IP_HEADER),
        (_AND, 0, 0, _VERSION),
        # Jumps of an instruction are short; this one, which always jumps, is not.
        (_IF_EQUAL, 1, 0, _IPV4),
        (_JUMP, 0, 0, len(ipv4) + 1),
        *ipv4,
        _LET_THROUGH,
        *ipv6,
        _LET_THROUGH,
    ]
