"""What the processes of `integrations.degrees.job` are forked with."""

import accelerate
import lightning
import transformers.trainer

from integrations.degrees import accelerates, job, lightnings, trainers

__all__ = ["accelerate", "accelerates", "job", "lightning", "lightnings"]
__all__ += ["trainers", "transformers"]
