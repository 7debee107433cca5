# Everything a developer or a first-time user runs. `make help` lists the targets.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0
JOBS := tests/faults tests/chain tests/cluster

.DEFAULT_GOAL := help
.PHONY: help demo demo-torch test test-parts test-jobs coverage lint bench bench-agent scoreboard clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.demo: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[demo]'
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@

$(VENV)/.torch: $(BIN)/python
	$(BIN)/python -m pip install --quiet $(TORCH) numpy
	@touch $@

demo: $(VENV)/.demo ## train on real data, break it twice, watch it recover (no torch)
	$(BIN)/python examples/demo.py

demo-torch: $(VENV)/.demo $(VENV)/.torch ## the same with PyTorch DDP on gloo
	$(BIN)/python examples/demo.py --torch

lint: $(VENV)/.dev ## format check, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: $(VENV)/.dev $(VENV)/.torch lint ## everything: lint, types, unit, simulation, real faults
	@$(MAKE) --keep-going --no-print-directory test-parts test-jobs

test-parts: $(VENV)/.dev $(VENV)/.torch ## tests of single parts, daemons included, on all cores
	$(BIN)/python -m pytest -n auto --dist loadfile $(JOBS:%=--ignore=%) $(PYTEST_ARGS) || [ $$? = 5 ]

test-jobs: $(VENV)/.dev $(VENV)/.torch ## whole jobs and clusters that are broken, one at a time
	$(BIN)/python -m pytest $(PYTEST_ARGS) $(JOBS) || [ $$? = 5 ]

coverage: $(VENV)/.dev $(VENV)/.torch ## which lines the tests of this process reach
	$(BIN)/coverage run -m pytest $(PYTEST_ARGS)
	$(BIN)/coverage report --skip-covered --sort=cover | tail -n 40

bench: $(VENV)/.dev ## the quick benchmarks; bench/README.md has them all
	$(BIN)/python bench/hook_cost.py
	$(BIN)/python bench/death.py
	$(BIN)/python bench/agent_cost.py
	$(BIN)/python bench/checkpoints.py

bench-agent: $(VENV)/.dev ## the node agent beside prometheus-node-exporter: memory, CPU, scrapes
	$(BIN)/python bench/agent/compare.py --output bench/agent/latest.json

scoreboard: $(VENV)/.dev ## detectors over labelled cases (RANKMEND_DATASETS, TRUTH=DIR)
	$(BIN)/python -m bench.scoreboard $(if $(TRUTH),--truth $(TRUTH)) $(SCOREBOARD_ARGS)

clean: ## remove what was built
	rm -rf $(VENV) build dist *.egg-info .coverage
