"""A swarm of simulated trainers that measures a server and proves that nothing was lost.

The swarm reads as trainers do, through the thin client, and keeps of each batch a digest of its
sample ids. What the ranks saw is then compared with what the manifest alone says they must see.
"""

from headrace.loadtest._faults import Kill, run_faults
from headrace.loadtest._picture import draw
from headrace.loadtest._proof import Proof, prove
from headrace.loadtest._proxy import Cut, CutKind, FaultyProxy
from headrace.loadtest._records import RECORD
from headrace.loadtest._resume import TokenCheck, check_tokens
from headrace.loadtest._spec import Pause, Rescale, SwarmSpec
from headrace.loadtest._summary import Summary, summarise
from headrace.loadtest._swarm import Progress, SwarmResult, run_swarm
from headrace.loadtest._timeline import Mark

__all__ = [
    "RECORD",
    "Cut",
    "CutKind",
    "FaultyProxy",
    "Kill",
    "Mark",
    "Pause",
    "Progress",
    "Proof",
    "Rescale",
    "Summary",
    "SwarmResult",
    "SwarmSpec",
    "TokenCheck",
    "check_tokens",
    "draw",
    "prove",
    "run_faults",
    "run_swarm",
    "summarise",
]
