"""Compile the server's loops into the wheel, where there is a C compiler.

Without one, Zig's is fetched from PyPI. If the loops cannot be compiled at all, the wheel is for
any platform and has no server that works; its client, converter and most commands do.
"""

from __future__ import annotations

import os
import runpy
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_KERNELS = Path("server", "headrace", "server", "kernels")


class CompiledLoops(BuildHookInterface):  # type: ignore[type-arg] # of no configuration
    """Hatch's hook, called once for each wheel."""

    _scratch: tempfile.TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        """Return the packages that building needs beside those of pyproject.toml."""
        script = Path(self.root, _KERNELS, "compile.py")
        needs_zig = script.is_file() and runpy.run_path(str(script))["needs_zig"]()
        return ["ziglang"] if needs_zig else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; into the sources themselves for an editable installation."""
        script = Path(self.root, _KERNELS, "compile.py")
        if not script.is_file():
            return  # an image without the server
        compiler = runpy.run_path(str(script))
        is_editable = version == "editable"
        self._scratch = tempfile.TemporaryDirectory(prefix="headrace-")
        folder = script.parent if is_editable else Path(self._scratch.name)
        try:
            made = compiler["compile_loops"](folder)
        except (compiler["NotCompiledError"], OSError) as error:
            self.app.display_warning(
                f"The server's loops were not compiled, so it will not start: {error}"
            )
            return
        if is_editable:
            return
        here = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        # Of `make dist`, whose compiler is told to compile for it.
        platform = os.environ.get("HEADRACE_WHEEL_PLATFORM", here)
        build_data["force_include"][str(made)] = f"headrace/server/kernels/{made.name}"
        build_data["pure_python"] = False
        # The stable ABI of the oldest Python that headrace runs on.
        build_data["tag"] = f"cp311-abi3-{platform}"

    def finalize(self, *_: object) -> None:
        """Remove what was compiled."""
        if self._scratch is not None:
            self._scratch.cleanup()
