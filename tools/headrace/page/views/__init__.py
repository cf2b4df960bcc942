"""The views of the page, by path."""

from collections.abc import Callable, Mapping

from starlette.responses import Response

from headrace.page.site import ViewRequest
from headrace.page.views.datasets import column, columns, dataset, datasets, preview, versions
from headrace.page.views.live import live
from headrace.page.views.orders import batch, order
from headrace.page.views.runs import run
from headrace.page.views.samples import sample, sample_file, samples

View = Callable[[ViewRequest], Response]

VIEWS: Mapping[str, tuple[View, str, str]] = {
    "/": (datasets, "datasets", ""),
    "/d/{name}": (dataset, "datasets", "overview"),
    "/d/{name}/column/{number}": (column, "datasets", "overview"),
    "/d/{name}/order": (order, "datasets", "order"),
    "/d/{name}/batch": (batch, "datasets", "batch"),
    "/d/{name}/versions": (versions, "datasets", "versions"),
    "/d/{name}/samples": (samples, "datasets", "samples"),
    "/d/{name}/sample/{id}": (sample, "datasets", "samples"),
    "/live": (live, "live", ""),
    "/run": (run, "runs", ""),
    "/d/{name}/preview": (preview, "", ""),
    "/d/{name}/columns": (columns, "", ""),
    "/d/{name}/file/{id}/{number}": (sample_file, "", ""),
}
"""Each view with its place in the header and its tab; those without a place are no pages."""

__all__ = ["VIEWS", "View"]
