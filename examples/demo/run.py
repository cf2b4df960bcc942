"""Run the demo: ``python examples/demo/run.py --output demo-output``."""

import runpy
import sys
from pathlib import Path

# The demo is a package, so that its parts can also be run alone with `python -m demo.trainer`.
sys.path[0] = str(Path(__file__).resolve().parents[1])
runpy.run_module("demo.story", run_name="__main__", alter_sys=True)
