"""Where the `headrace` command begins: it starts even where its own packages are missing."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line and exit with its code."""
    # gRPC's core writes lines of its own to standard error for what we report in one of ours; it
    # reads this when it is loaded.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        import headrace.errors  # noqa: F401, PLC0415 - first, for it refuses Windows
        from headrace.cli.group import run  # noqa: PLC0415 - needs the [cli] extra
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"headrace: the command line needs the package {error.name!r}; install it with "
            "pip install 'headrace[cli]'\n"
        )
        sys.exit(1)
    except ImportError as error:  # a system that headrace does not run on
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
    sys.exit(run(sys.argv[1:]))
