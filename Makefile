# Everything a developer or a first-time user runs. `make help` lists the targets.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0
# What is installed is compiled when it is first imported: half the time of an installation. Then it must be kept, whatever
# the environment says: the tests start hundreds of programs, and PyTorch takes twice as long where it is compiled each time.
unexport PYTHONDONTWRITEBYTECODE
INSTALL = $(BIN)/python -m pip install -qq --no-compile
LOCKED = $(INSTALL) --constraint deploy/lock.txt
# Two workers a core: more of them end no sooner, and make the load by which a test of processes fails by chance.
WORKERS ?= $(shell cores=$$(nproc); echo $$((cores < 4 ? cores * 2 : 8)))
PYTEST = $(BIN)/python -m pytest --numprocesses=$(WORKERS) --no-loadscope-reorder \
    --run-again --durations=30 -p tests.support.cpu_seconds --cpu-seconds=60
REAL = --tier process --tier site

# A failure in one part keeps no other part from running; `make` fails at the end.
MAKEFLAGS += --keep-going

.DEFAULT_GOAL := help
.PHONY: help demo demo-torch docs site check test test-all test-chosen test-rest test-thorough stress coverage lint bench bench-agent bench-recovery drills soak gpu jepsen simulation simulation-findings scoreboard deb rpm release lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml deploy/lock.txt
	$(LOCKED) -e '.[demo]'
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml deploy/lock.txt
	$(LOCKED) -e '.[dev]'
	@touch $@

$(VENV)/.torch: $(BIN)/python
	$(INSTALL) $(TORCH) numpy
	@touch $@

$(VENV)/.plot: $(BIN)/python pyproject.toml deploy/lock.txt
	$(LOCKED) -e '.[plot]'
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

check: $(VENV)/.dev ## while you work: format, lint, types, unit tests (a minute; CHECK_ARGS=--changed: what differs from the last commit)
	$(BIN)/python -m tests.check $(CHECK_ARGS)

test: check test-chosen ## `make check`, one real fault of each kind, and each part on its real component (5 minutes)

test-all: test test-rest test-thorough ## `make test`, then every other test

test-chosen: $(VENV)/.dev $(VENV)/.torch
	$(PYTEST) $(REAL) --chosen only $(PYTEST_ARGS)

test-rest: $(VENV)/.dev $(VENV)/.frameworks $(VENV)/.parallel
	RANKMEND_TESTS_REQUIRE_FRAMEWORKS=1 $(PYTEST) --hypothesis-profile=thorough $(REAL) --chosen not $(PYTEST_ARGS)

test-thorough: $(VENV)/.dev
	$(BIN)/python -m pytest -q --numprocesses=auto --hypothesis-profile=thorough --tier unit -m "hypothesis or thorough" $(PYTEST_ARGS)

# FILES: files, folders or node ids. N: how many times each. LOAD: busy loops beside them. STALLS=1 (root): processes stand still.
N ?= 20
LOAD ?= 8
STALLS ?=
stress: $(VENV)/.dev $(VENV)/.torch ## run chosen tests many times beside a load: FILES="tests/recovery/launcher/test_guardian.py" N=20 LOAD=8
	$(BIN)/python -m tests.stress --times $(N) --load $(LOAD) --workers $(WORKERS) $(if $(STALLS),--stalls) $(FILES)

docs: $(VENV)/.dev ## write the generated pages, tables, rules and dashboards
	$(BIN)/python docs/generate.py
	$(BIN)/python deploy/prometheus/generate.py
	$(BIN)/python deploy/grafana/generate.py

$(VENV)/.docs: $(BIN)/python pyproject.toml deploy/lock.txt
	$(LOCKED) -e '.[controller,docs]'
	@touch $@

site: $(VENV)/.docs ## build/site: the documentation with search, for any web server (RANKMEND_REPOSITORY=URL: links to files outside docs/)
	$(BIN)/python -m sphinx -W --keep-going -q -c docs/site -d build/site-read docs build/site

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
	$(BIN)/python -m bench.recovery.many_hosts --output results/recovery-hosts.json

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
	$(BIN)/python -m pytest -q -s --timeout 0 -p no:cacheprovider tests/recovery/journal/postgres/test_simulated_controllers.py -k random

simulation-findings: export RANKMEND_SIM_SEEDS ?= 5000
simulation-findings: $(VENV)/.dev ## rules gone mad against a healthy fleet, a seed after the other (RANKMEND_SIM_SEEDS, RANKMEND_SIM_SEED)
	$(BIN)/python -m pytest -q --timeout 0 -p no:cacheprovider tests/recovery/controller/cluster/test_false_findings.py

scoreboard: $(VENV)/.dev ## detectors over labelled cases (RANKMEND_DATASETS, TRUTH=DIR)
	$(BIN)/python -m bench.scoreboard $(if $(TRUTH),--truth $(TRUTH)) $(SCOREBOARD_ARGS)

# For the distribution's own Python, on which the package then depends. Needs debhelper, or rpmbuild.
PACKAGE_PYTHON ?= /usr/bin/python3
deb: ## dist/rankmend_VERSION_ARCH.deb for this distribution (PACKAGE_ARGS='--wheels FOLDER': without pip's registry)
	$(PACKAGE_PYTHON) deploy/packages/build.py deb $(PACKAGE_ARGS)

rpm: ## the same as an RPM
	$(PACKAGE_PYTHON) deploy/packages/build.py rpm $(PACKAGE_ARGS)

$(VENV)/.release: $(BIN)/python pyproject.toml
	$(INSTALL) -e '.[release]'
	@touch $@

release: $(VENV)/.release ## dist/: wheel, sdist, deb, RPM, SBOM and SHA256SUMS, checked (RELEASE_ARGS='--without rpm')
	$(BIN)/python deploy/packages/release.py --python $(PACKAGE_PYTHON) $(RELEASE_ARGS)

lock: $(VENV)/.release ## deploy/lock.txt: the versions of packages that CI, deb, RPM and image take (LOCK_ARGS=--upgrade: the newest)
	$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --extra all --extra dev --no-annotate \
	    --custom-compile-command 'make lock' $(LOCK_ARGS) pyproject.toml -o deploy/lock.txt

clean: ## remove what was built
	rm -rf $(VENV) build dist *.egg-info .coverage
