# Everything a developer or a first-time user runs. `make help` lists the targets.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0
# What is installed is compiled when it is first imported: half the time of an installation. Then it must be kept, whatever
# the environment says: the tests start hundreds of programs, and PyTorch takes twice as long where it is compiled each time.
unexport PYTHONDONTWRITEBYTECODE
INSTALL = $(BIN)/python -m pip install -qq --no-compile
# Two workers a core: most of a test's time is spent waiting for processes and timers. Those of a file share what they start.
WORKERS ?= $(shell cores=$$(nproc); echo $$((cores < 4 ? cores * 2 : 8)))
PYTEST = $(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder \
    --durations=30

# A failure in one part keeps no other part from running; `make` fails at the end.
MAKEFLAGS += --keep-going

.DEFAULT_GOAL := help
.PHONY: help demo demo-torch docs test test-all test-quick test-long coverage lint bench bench-agent bench-recovery drills soak gpu jepsen simulation scoreboard deb rpm clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml
	$(INSTALL) -e '.[demo]'
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml
	$(INSTALL) -e '.[dev]'
	@touch $@

$(VENV)/.torch: $(BIN)/python
	$(INSTALL) $(TORCH) numpy
	@touch $@

$(VENV)/.plot: $(BIN)/python pyproject.toml
	$(INSTALL) -e '.[plot]'
	@touch $@

# Frameworks that write the checkpoints of tests/recovery/checkpoints/test_frameworks.py: 700 MB.
$(VENV)/.frameworks: $(VENV)/.torch pyproject.toml
	$(INSTALL) -e '.[frameworks]' && touch $@ || echo 'no frameworks: the tests that need them fail'

# In a folder of their own: accelerate and transformers import DeepSpeed wherever they find it.
$(VENV)/.parallel: $(VENV)/.frameworks
	DS_BUILD_OPS=0 $(INSTALL) --no-deps --no-build-isolation --target $(VENV)/parallel \
	    deepspeed==0.19.8 megatron-core==0.16.1 einops hjson ninja py-cpuinfo && touch $@ \
	    || echo 'no DeepSpeed, no megatron-core: the tests that need them are skipped'

demo: $(VENV)/.demo ## train on real data, break it twice, watch it recover (no torch)
	$(BIN)/python examples/demo.py

demo-torch: $(VENV)/.demo $(VENV)/.torch ## the same with PyTorch DDP on gloo
	$(BIN)/python examples/demo.py --torch

lint: $(VENV)/.dev ## format check, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The tests leave a part of a processor idle, in which lint runs. What it finds is printed at once.
test: $(VENV)/.dev $(VENV)/.torch ## lint, types, tests of every part, and one real fault of each kind
	@{ nice $(MAKE) --no-print-directory lint >$(VENV)/lint.log 2>&1 || { cat $(VENV)/lint.log; false; }; } & lint=$$!; \
	$(MAKE) --no-print-directory test-quick; status=$$?; \
	if wait $$lint; then tail -n 1 $(VENV)/lint.log; else echo "lint failed: $(VENV)/lint.log"; status=1; fi; exit $$status

test-all: test test-long ## `make test`, then whole jobs, clusters and long simulations

test-quick: $(VENV)/.dev $(VENV)/.torch ## the tests of `make test`, without lint and types
	$(PYTEST) -m 'not long or real_fault' $(PYTEST_ARGS) || [ $$? = 5 ]

test-long: $(VENV)/.dev $(VENV)/.frameworks $(VENV)/.parallel ## the tests that only `make test-all` runs
	RANKMEND_TESTS_REQUIRE_FRAMEWORKS=1 $(PYTEST) --hypothesis-profile=thorough \
	    -m '(long and not real_fault) or hypothesis' $(PYTEST_ARGS) || [ $$? = 5 ]

docs: $(VENV)/.dev ## write the generated pages, tables, rules and dashboards
	$(BIN)/python docs/generate.py
	$(BIN)/python deploy/prometheus/generate.py
	$(BIN)/python deploy/grafana/generate.py

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

# The peers get an environment of their own, never the user's.
bench-recovery: $(VENV)/.dev $(VENV)/.torch $(VENV)/.plot ## recovery from kill -9 beside torchrun, ft_launcher and torchft (hours; RECOVERY_ARGS='--rounds 1')
	$(BIN)/python -m bench.recovery.install $(VENV)/peers --torch '$(TORCH)'
	$(BIN)/python -m bench.recovery --peers-venv $(VENV)/peers --plot results/recovery.svg $(RECOVERY_ARGS)

gpu: $(VENV)/.dev $(VENV)/.torch ## what holds on a real NVIDIA GPU: docs/reference/proved-on-gpu.md (10 minutes; GPU_ARGS='--only nvml')
	$(BIN)/python -m bench.gpu $(GPU_ARGS) || [ $$? = 77 ]

drills: $(VENV)/.dev ## every kind of fault in every phase of a job: docs/reference/drills.md (40 minutes; root, Slurm and PyTorch for all; DRILLS_ARGS='--section nodes')
	$(BIN)/python -m bench.drills --end-with-parent $(DRILLS_ARGS)

soak: $(VENV)/.dev $(VENV)/.plot ## a job under random faults for 30 minutes, with rankmend's memory measured: docs/reference/soak.md (root for all; SOAK_ARGS='--minutes 120 --seed 7')
	$(BIN)/python -m bench.soak --end-with-parent --output results/soak.json --plot results/soak.svg $(SOAK_ARGS)

jepsen: $(VENV)/.dev ## three controllers on PostgreSQL under faults for an hour, all checked (root; JEPSEN_ARGS='--seconds 600 --seed 7')
	$(BIN)/python -m bench.jepsen --output results/jepsen.json $(JEPSEN_ARGS)

simulation: export RANKMEND_SIM_SECONDS ?= 3600
simulation: $(VENV)/.dev ## the same faults in simulated time, a seed after the other for an hour (RANKMEND_SIM_SECONDS, RANKMEND_SIM_SEED)
	$(BIN)/python -m pytest -q -s --timeout 0 -p no:cacheprovider tests/recovery/postgres/test_simulated_controllers.py -k random

scoreboard: $(VENV)/.dev ## detectors over labelled cases (RANKMEND_DATASETS, TRUTH=DIR)
	$(BIN)/python -m bench.scoreboard $(if $(TRUTH),--truth $(TRUTH)) $(SCOREBOARD_ARGS)

# For the distribution's own Python, on which the package then depends. Needs debhelper, or rpmbuild.
PACKAGE_PYTHON ?= /usr/bin/python3
deb: ## dist/rankmend_VERSION_ARCH.deb for this distribution (PACKAGE_ARGS='--wheels FOLDER': without pip's registry)
	$(PACKAGE_PYTHON) deploy/packages/build.py deb $(PACKAGE_ARGS)

rpm: ## the same as an RPM
	$(PACKAGE_PYTHON) deploy/packages/build.py rpm $(PACKAGE_ARGS)

clean: ## remove what was built
	rm -rf $(VENV) build dist *.egg-info .coverage
