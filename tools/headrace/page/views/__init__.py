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

VIEWS: Mapping[str, View] = {
    "/": datasets,
    "/d/{name}": dataset,
    "/d/{name}/preview": preview,
    "/d/{name}/columns": columns,
    "/d/{name}/column/{number}": column,
    "/d/{name}/order": order,
    "/d/{name}/batch": batch,
    "/live": live,
    "/run": run,
    "/d/{name}/versions": versions,
    "/d/{name}/samples": samples,
    "/d/{name}/sample/{id}": sample,
    "/d/{name}/file/{id}/{number}": sample_file,
}

__all__ = ["VIEWS", "View"]
