"""A server without tokens: a thousand connections of one address, and a caller of another."""

from __future__ import annotations

import sys

from attacks.a28_one_call_each import asking
from attacks.harness import Attack, Begin, Counts, Target, main

# Another address than the honest caller's, which is all that tells them apart.
_SOURCE = "127.0.0.2"


def _strike(target: Target, begin: Begin) -> Counts:
    return asking(target, begin, source=_SOURCE)


ATTACK = Attack("many connections without any tokens", _strike, has_tokens=False)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
