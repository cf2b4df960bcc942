"""A stand-in for the Hugging Face Hub, written from its published API: revisions, trees, ranges.

It counts what is downloaded, moves branches, and answers with the statuses that a test wants.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from support.http_serving import http_serving

_Files = Mapping[str, bytes]
_PAGE = 2  # entries of a listing; the real Hub has 1,000


@dataclass
class Hub:
    """A running Hub with one dataset.

    Attributes:
        commits: The files of each commit.
        refs: The commits of branches and other references.
        downloads: The path and the range of each download.
        status: With which status questions about revisions are answered, unless 200.
        address: Where it listens.
        repo: The name of the dataset.
    """

    commits: dict[str, _Files] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    downloads: list[tuple[str, str]] = field(default_factory=list)
    status: int = 200
    address: str = ""
    repo: str = "o/n"

    def push(self, files: _Files, *, ref: str = "main") -> str:
        """Make a commit the newest of a branch, and return it."""
        names = "\n".join(f"{name} {len(files[name])} {len(self.commits)}" for name in files)
        commit = hashlib.sha1(names.encode(), usedforsecurity=False).hexdigest()
        self.commits[commit] = files
        self.refs[ref] = commit
        return commit

    def commit(self, revision: str) -> str | None:
        """Return the commit of a revision."""
        return revision if revision in self.commits else self.refs.get(revision)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        repo = f"datasets/{self.hub.repo}"
        if path.startswith(f"/api/{repo}/revision/"):
            self._revision(path.removeprefix(f"/api/{repo}/revision/"))
        elif path.startswith(f"/api/{repo}/tree/"):
            self._tree(path.removeprefix(f"/api/{repo}/tree/"), parse_qs(parts.query))
        elif path.startswith(f"/{repo}/resolve/"):
            self._file(path.removeprefix(f"/{repo}/resolve/"))
        else:
            self._json(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        commit = unquote(self.path).removeprefix(f"/api/datasets/{self.hub.repo}/paths-info/")
        asked = json.loads(body)["paths"] if body[:1] == b"{" else parse_qs(body.decode())["paths"]
        files = self.hub.commits[commit]
        self._json(200, [_entry(name, files) for name in asked if _is_there(name, files)])

    def _revision(self, revision: str) -> None:
        if self.hub.status != 200:
            self._json(self.hub.status, {"error": "as the test wants it"})
        elif (commit := self.hub.commit(revision)) is None:
            self._json(404, {"error": "no"}, {"X-Error-Code": "RevisionNotFound"})
        else:
            self._json(200, {"id": "o/n", "sha": commit, "private": False, "tags": []})

    def _tree(self, place: str, query: Mapping[str, list[str]]) -> None:
        commit, _, folder = place.partition("/")
        files = self.hub.commits[commit]
        prefix = f"{folder}/" if folder else ""
        names = sorted(name for name in files if name.startswith(prefix))
        if "recursive" not in query or query["recursive"] == ["False"]:
            names = sorted({prefix + name[len(prefix) :].split("/")[0] for name in names})
        first = int(query.get("cursor", ["0"])[0])
        more = {}
        if first + _PAGE < len(names):
            base = f"{self.hub.address}{urlsplit(self.path).path}"
            more["Link"] = f'<{base}?recursive=True&cursor={first + _PAGE}>; rel="next"'
        if not names:
            self._json(404, {"error": "no"}, {"X-Error-Code": "EntryNotFound"})
            return
        self._json(200, [_entry(name, files) for name in names[first : first + _PAGE]], more)

    def _file(self, place: str) -> None:
        commit, _, name = place.partition("/")
        content = self.hub.commits.get(commit, {}).get(name)
        if content is None:
            self._json(404, {"error": "no"}, {"X-Error-Code": "EntryNotFound"})
            return
        asked = self.headers.get("Range", "")
        if self.command == "GET":
            self.hub.downloads.append((name, asked))
        status, part = 200, content
        headers = {"ETag": f'"{_blob(content)}"', "X-Repo-Commit": commit}
        if asked:
            first, last = asked.removeprefix("bytes=").split("-")
            part = content[int(first) : int(last or len(content)) + 1]
            status = 206
            end = int(first) + len(part) - 1
            headers["Content-Range"] = f"bytes {first}-{end}/{len(content)}"
        self._send(status, part, headers)

    def _json(self, status: int, answer: object, headers: Mapping[str, str] | None = None) -> None:
        content = json.dumps(answer).encode()
        self._send(status, content, {"Content-Type": "application/json", **(headers or {})})

    def _send(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def _is_there(name: str, files: _Files) -> bool:
    return name in files or any(other.startswith(f"{name}/") for other in files)


def _entry(name: str, files: _Files) -> dict[str, Any]:
    if name not in files:
        return {"type": "directory", "oid": "0" * 40, "size": 0, "path": name}
    content = files[name]
    return {"type": "file", "oid": _blob(content), "size": len(content), "path": name}


def _blob(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


@contextmanager
def hub() -> Iterator[Hub]:
    """Run a Hub."""
    made = Hub()
    with http_serving(_Handler, hub=made) as port:
        made.address = f"http://127.0.0.1:{port}"
        yield made
