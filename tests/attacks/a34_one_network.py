"""A thousand connections of strangers from the /64 network of IPv6 that the honest caller is in.

It needs two addresses of one network that no machine has by itself; as root:

    for one in 1 2; do ip -6 addr add fd00:6865:6164::$one/64 dev lo nodad; done
"""

from __future__ import annotations

import sys

from attacks.a28_one_call_each import asking
from attacks.harness import Attack, Begin, Counts, Target, main

_SOURCE = "fd00:6865:6164::2"


def _strike(target: Target, begin: Begin) -> Counts:
    return asking(target, begin, source=_SOURCE)


# The honest caller connects from the address that it connects to.
ATTACK = Attack("many connections of one IPv6 network", _strike, host="[fd00:6865:6164::1]")

if __name__ == "__main__":
    sys.exit(main(ATTACK))
