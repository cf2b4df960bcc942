"""Measure a machine, and the way from a server to a training loop, piece by piece."""

from headrace.bench._doctor import Diagnosis, Need, diagnose
from headrace.bench._limits import Limits, measure_limits
from headrace.bench._pieces import Pieces, measure_pieces
from headrace.bench._store import StoreDiagnosis, StoreNeed, diagnose_store
from headrace.bench._workloads import WORKLOADS, Workload

__all__ = [
    "WORKLOADS",
    "Diagnosis",
    "Limits",
    "Need",
    "Pieces",
    "StoreDiagnosis",
    "StoreNeed",
    "Workload",
    "diagnose",
    "diagnose_store",
    "measure_limits",
    "measure_pieces",
]
