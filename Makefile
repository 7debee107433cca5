# Everything a developer or a first-time user runs. `make help` lists the targets.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0

.DEFAULT_GOAL := help
.PHONY: help demo demo-torch test test-pure test-real coverage lint bench bench-agent scoreboard clean

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
	@$(MAKE) --keep-going --no-print-directory test-pure test-real

test-pure: $(VENV)/.dev $(VENV)/.torch ## tests without processes and daemons, on all cores
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not real" $(PYTEST_ARGS) || [ $$? = 5 ]

test-real: $(VENV)/.dev $(VENV)/.torch ## tests with real processes, signals and daemons, one at a time
	$(BIN)/python -m pytest -m real $(PYTEST_ARGS) || [ $$? = 5 ]

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
