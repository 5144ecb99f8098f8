# Every target works from a fresh clone: it makes .venv first, and again only when pyproject.toml or
# constraints.txt changed. PYTHON=/path/to/python3.12 chooses another interpreter, ARGS=... passes
# arguments on: make test ARGS="tests/schemas -x"

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
STAMP := .venv/.installed
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))

# A uv that works on the PATH serves; otherwise one of our own in .uv/, never in the system's Python.
UV := $(shell if uv --version >/dev/null 2>&1; then echo uv; else echo .uv/bin/uv; fi)

.PHONY: help install runbooks dashboards run test coverage test-gate test-wheel test-slow peers test-peers peers-kube test-peers-kube lint format bench bench-stream bench-quiet bench-detect bench-whatif models parity chaos properties mutants attack lock sbom digests clean distclean

help:
	@echo "make install    .venv with everything (about 6 GB, minutes the first time)"
	@echo "make run        a real training job, a real fault, the verdict, and the job trains again"
	@echo "make test       the tests that take seconds;  make test-gate: real jobs, clusters, attacks;  make test-slow: the rest"
	@echo "make coverage   make test with branch coverage, against its floor"
	@echo "make test-wheel the wheel as a training host installs it, on Python 3.11 and 3.12"
	@echo "make test-peers against a real Alertmanager, Prometheus and Slurm (make peers fetches them)"
	@echo "make test-peers-kube  against a real Kubernetes API server (make peers-kube builds it: Go, six minutes)"
	@echo "make lint       ruff, mypy, import-linter, units in names;  make format: mend what can be mended"
	@echo "make bench      the figures that docs/claims.md cites;  make bench-stream: Kafka, Flink, ClickHouse at 10,000 hosts"
	@echo "make models     the networks that ship in models/defaults, from simulated jobs of one seed and recorded drills (minutes)"
	@echo "make bench-quiet   healthy jobs of up to thousands of machines: is anybody accused?  make bench-detect: machines a second"
	@echo "make bench-whatif  how fast tocsin whatif is, beside a simulation of one operation at a time, and its memory"
	@echo "make parity     every recording through Kafka, Flink and ClickHouse: what the embedded engine says, to the byte"
	@echo "make chaos      the same while each part is killed with -9, at least 20 times each (half an hour)"
	@echo "make properties the controller of actions, 2,000 runs of 50 steps;  make mutants: it misses each guard that is left out"
	@echo "make attack     what attackers tried: one JSON line each, status 1 where one did not hold (an hour at most)"
	@echo "make runbooks  docs/runbooks/ from schemas/runbooks/;  make dashboards: deploy/grafana/dashboards/ from tests/tools/grafana/"
	@echo "make sbom       a bill of materials (CycloneDX);  make lock: pins and hashes anew;  make digests: images by digest"
	@echo "make clean      remove caches and builds;  make distclean: the environments too"

install: $(STAMP)
	@:

$(STAMP): pyproject.toml constraints.txt deploy/requirements.lock | $(filter .uv/bin/uv,$(UV))
	@if ! $(BIN)/python -c '$(SUPPORTED)' 2>/dev/null; then \
	  rm -rf .venv; \
	  python='$(PYTHON)'; \
	  if ! "$$python" -c '$(SUPPORTED)' 2>/dev/null; then \
	    echo "$$python is not Python 3.11 or 3.12: uv looks for one (or set PYTHON=...)"; \
	    python='>=3.11,<3.13'; \
	  fi; \
	  $(UV) venv --quiet --python "$$python" .venv; \
	fi
	@echo "installing into .venv: about 6 GB with torch and Flink, minutes the first time"
	@$(UV) pip install --python $(BIN)/python --require-hashes -r deploy/requirements.lock
	@$(UV) pip install --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

# --target needs only pip where the venv module is missing (Debian without python3-venv).
.uv/bin/uv:
	@{ $(PYTHON) -m venv .uv && .uv/bin/python -m pip install --quiet --require-hashes -r deploy/uv.lock; } \
	  || { rm -rf .uv && $(PYTHON) -m pip install --quiet --require-hashes -r deploy/uv.lock --target .uv; } \
	  || { rm -rf .uv; echo "make: no uv, and '$(PYTHON) -m pip' cannot fetch it: install uv or set PYTHON=..." >&2; exit 1; }

SPREAD := -n auto --maxprocesses=4 --max-worker-restart=0 --no-loadscope-reorder

run: install
	@$(BIN)/tocsin drill --demo $(ARGS)

# A process for each core, up to four (each may start a Kafka and a ClickHouse of its own; tests/workers.py says which
# runs what). A process that is lost ends the run: without that it would wait for ever. ARGS="-n0": one process.
test: install
	@$(BIN)/python -m pytest -m "not slow and not gate and not peers and not peers_kube" $(SPREAD) $(ARGS)

# The same with branch coverage; ends with a status that is not 0 below the floor in pyproject.toml (twice as long).
coverage: install
	@rm -f .coverage .coverage.*
	@$(BIN)/coverage run -m pytest -m "not slow and not gate and not peers and not peers_kube" $(SPREAD) --timeout 900 $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --skip-covered --sort=cover | tail -n 60

# Real jobs, clusters and attacks: what takes tens of seconds each. ARGS=tests/walks: some of them.
test-gate: install
	@$(BIN)/python -m pytest -m "gate and not slow" $(SPREAD) $(ARGS)

# The wheel, installed as on a training host, for each Python that is here (ARGS=3.12: that one). With CI=1 all must be.
test-wheel: install
	@$(BIN)/python -m tests.tools.wheel $(ARGS)

# docs/runbooks/ from schemas/runbooks/.
runbooks: install
	@$(BIN)/python -m tests.tools.runbooks

# deploy/grafana/dashboards/ from tests/tools/grafana/.
dashboards: install
	@$(BIN)/python -m tests.tools.grafana

# Debian's Alertmanager, Prometheus and Slurm, unpacked into build/peers (no root).
peers: install
	@$(BIN)/python -m tests.tools.peers

# Against them; a peer that is missing or down is a failure.
test-peers: peers
	@$(BIN)/python -m pytest -m peers -n0 $(ARGS) tests/peers

# A Kubernetes API server, built with Go from upstream's sources, and Debian's etcd, into build/peers_kube.
peers-kube: install
	@$(BIN)/python -m tests.tools.peers_kube

# Against it; not a part of make test, make test-peers and CI, because building it takes minutes.
test-peers-kube: peers-kube
	@$(BIN)/python -m pytest -m peers_kube -n0 $(ARGS) tests/peers_kube

test-slow: install
	@$(BIN)/python -m pytest -m slow $(ARGS)

# Whatever happens to the controller of actions, in 2,000 runs of 50 steps (some ten minutes).
properties: install
	@TOCSIN_PROPERTY_RUNS=$${TOCSIN_PROPERTY_RUNS:-2000} $(BIN)/python -m pytest -q --timeout 7200 $(ARGS) \
	  tests/pipeline/actions/test_properties.py

# The guards of actions, one left out after the other: the tests must notice each (ARGS="budgets --json": some, as JSON).
mutants: install
	@$(BIN)/python -m tests.tools.mutants $(ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tests.tools.check_units
	$(BIN)/python -m tests.tools.check_sizes

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install
	@$(BIN)/python -m tests.bench $(ARGS)

bench-stream: install
	@$(BIN)/python -m tests.bench.stream $(ARGS)

models: install
	@$(BIN)/tocsin train --defaults --out models/defaults $(ARGS)

# ARGS="--machine-days 3000": more of them (1,000: half an hour on two idle cores); ARGS="--keep FILE": goes on where it stopped
bench-quiet: install
	@$(BIN)/python -m tests.bench.quiet $(ARGS)

bench-detect: install
	@$(BIN)/python -m tests.bench.detect $(ARGS)

# ARGS="--workers 125 500": some sizes of jobs
bench-whatif: install
	@$(BIN)/python -m tests.bench.whatif $(ARGS)

# ARGS="simulated dumps": some of the recordings; ARGS="--also FOLDER": recordings of your own
parity: install
	@$(BIN)/python -m tests.chaos.parity $(ARGS)

# ARGS="--seed 7 --rounds 1 --mode exactly-once": one round again; ARGS="--only pages": pages of killed senders
chaos: install
	@$(BIN)/python -m tests.chaos.chaos $(ARGS)

# ARGS="--finding C4": the attacks of one finding; ARGS=--quick: those of make test
attack: install
	@$(BIN)/python -m tests.attacks $(ARGS)

# Pins and hashes of every package, from pyproject.toml and constraints.txt. make lock UPGRADE=1: the newest that fit.
LOCK := --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --quiet
lock: | $(filter .uv/bin/uv,$(UV))
	$(UV) pip compile pyproject.toml --all-extras $(if $(UPGRADE),--upgrade,-c constraints.txt) $(LOCK) -o deploy/requirements.lock
	echo uv | $(UV) pip compile - $(if $(UPGRADE),--upgrade,-c constraints.txt) $(LOCK) -o deploy/uv.lock

# What is installed, as CycloneDX: build/sbom-python.json and build/sbom-java.json (Maven).
sbom: install
	@mkdir -p build
	@$(UV) tool run --from cyclonedx-bom==7.5.0 cyclonedx-py environment .venv -o build/sbom-python.json
	@mvn -q -B -f deploy/pom.xml org.cyclonedx:cyclonedx-maven-plugin:2.9.1:makeBom -DoutputFormat=json \
	  -DoutputDirectory=$(CURDIR)/build -DoutputName=sbom-java
	@echo "build/sbom-python.json build/sbom-java.json"

# Tags of images -> digests, in every file of deploy/ (needs a registry of images and crane, skopeo or docker).
digests:
	@bash deploy/digests.sh $(ARGS)

clean:
	rm -rf build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage*
	find src pipeline models collectors schemas tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv .uv
