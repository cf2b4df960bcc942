"""Compile the loops of this installation: ``python -m headrace.server.kernels``."""

import sys

from headrace.server.kernels.compile import NotCompiledError, compile_loops

try:
    print(compile_loops())  # noqa: T201 - the answer of the command
except (NotCompiledError, OSError) as failure:
    sys.exit(f"not compiled: {failure}")
