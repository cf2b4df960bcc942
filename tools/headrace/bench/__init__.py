"""Measure a machine, and each stage between a server and a training loop."""

from headrace.bench.doctor import Diagnosis, Need, diagnose
from headrace.bench.image_doctor import ImageCost, decoding_rate, measure_images
from headrace.bench.limits import Limits, measure_limits
from headrace.bench.serving_cost import ServingCost, measure_serving
from headrace.bench.stages import StageRates, measure_stages
from headrace.bench.store_doctor import StoreDiagnosis, StoreNeed, diagnose_store
from headrace.bench.workloads import WORKLOADS, Workload

__all__ = [
    "WORKLOADS",
    "Diagnosis",
    "ImageCost",
    "Limits",
    "Need",
    "ServingCost",
    "StageRates",
    "StoreDiagnosis",
    "StoreNeed",
    "Workload",
    "decoding_rate",
    "diagnose",
    "diagnose_store",
    "measure_images",
    "measure_limits",
    "measure_serving",
    "measure_stages",
]
