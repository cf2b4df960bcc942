"""The entry point of the `headrace` command, which works even if packages are missing."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line and exit with its code."""
    # gRPC would also log the errors that we report. It reads this variable when it loads.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        import headrace.errors  # noqa: F401, PLC0415 - first, because it refuses Windows
        from headrace.cli.group import run  # noqa: PLC0415 - needs the [cli] extra
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"headrace: the command line needs the package {error.name!r}; install it with "
            "pip install 'headrace[cli]'\n"
        )
        sys.exit(1)
    except ImportError as error:  # headrace does not support this system
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
    sys.exit(run(sys.argv[1:]))
