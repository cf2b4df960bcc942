"""Make the kernel drop the first packet of each connection from certain networks.

A listening socket takes a filter, a small program for the kernel's packet filter (BPF). Every
process may attach one to its own sockets. It sees a packet from the TCP header on, and the IP
header at a special offset. Packets of established connections pass.

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
"""The kernel accepts 4,096 instructions, and a network takes at most five."""

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
# Opcodes; an instruction also has two jumps, for true and for false, and a value.
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
    """Return the network to block for a client: its IPv4 address, or its IPv6 network of 64 bits.

    Raises:
        ValueError: The text is not an address.
    """
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    bits = 32 if isinstance(address, ipaddress.IPv4Address) else 64
    return ipaddress.ip_network((address, bits), strict=False)


def keep_out(listener: socket.socket, networks: Sequence[Network]) -> None:
    """Refuse connections from these networks, and accept them from all others.

    Args:
        listener: A listening TCP socket.
        networks: The networks, from `network_of`, at most `MOST_NETWORKS`.

    Raises:
        OSError: The kernel does not accept the filter.
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
        # Conditional jumps are short; this unconditional one is not.
        (_IF_EQUAL, 1, 0, _IPV4),
        (_JUMP, 0, 0, len(ipv4) + 1),
        *ipv4,
        _LET_THROUGH,
        *ipv6,
        _LET_THROUGH,
    ]
