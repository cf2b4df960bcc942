"""Simulate many trainers to measure a server, and prove that no sample was lost.

The simulated trainers, together called a swarm, read through the client and record a digest of the
sample ids of each batch. The records are then compared with the order computed from the manifest.
"""

from headrace.loadtest.faults.faults import Kill, run_faults
from headrace.loadtest.faults.proxy import Cut, CutKind, FaultyProxy
from headrace.loadtest.proof.proof import Proof, prove
from headrace.loadtest.proof.resume import TokenCheck, check_tokens
from headrace.loadtest.report.picture import draw
from headrace.loadtest.report.summary import Summary, summarise
from headrace.loadtest.report.timeline import Mark
from headrace.loadtest.swarm.records import RECORD
from headrace.loadtest.swarm.spec import Pause, Rescale, SwarmSpec
from headrace.loadtest.swarm.swarm import Progress, SwarmResult, run_swarm

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
