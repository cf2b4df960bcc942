"""What the processes of `integrations.degrees_job` are forked with."""

import accelerate

import headrace.integrations.accelerate
from integrations import degrees_job

__all__ = ["accelerate", "degrees_job", "headrace"]
