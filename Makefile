# One door for people and for CI. `make help` lists the targets.
#
#   make plan    planner environment without torch (about a minute), then the main job
#   make test    test environment (CPU torch, megatron-core), then everything CI checks
#
# A bare Debian 12 needs, once and as root:  apt-get install make git python3.11 python3.11-venv

PYTHON ?= $(shell command -v python3.11 || command -v python3)
MODEL ?= minimax-m2
GPUS ?= 64
WORKERS ?= 2

PLAN_ENV := .venv-plan
ENV := .venv
NVRX_ENV := .venv-nvrx
BRIDGE_ENV := .venv-bridge
BRIDGE06_ENV := .venv-bridge06
PYTHON312 := $(shell python3.12 -c 'import sys; print(sys.executable)' 2>/dev/null)
BIN := $(ENV)/bin
PIP := -m pip install -qq --disable-pip-version-check
PAGES := tests/cli tests/golden tests/export tests/configure/test_launch.py tests/check/test_readback.py \
	tests/trace/test_page.py tests/diagnose/test_pages.py tests/trial/test_pages.py tests/trial/test_ab.py tests/test_notebooks.py
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest --disable-warnings
NOT_USUAL := not slow and not gpu and not bench

.DEFAULT_GOAL := help
.PHONY: help plan test lint types imports test-unit test-real test-full slurm-deps nvrx-deps test-bridge test-bridge06 bench docs format calibrate clean

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 22

$(PLAN_ENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(PLAN_ENV)
	$(PLAN_ENV)/bin/python $(PIP) --editable .
	@touch $@

# torch first: asked for by name and version it is the CPU build where one is offered, and megatron-core keeps it.
$(ENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "the test stack needs Python 3.11: make PYTHON=...")'
	$(PYTHON) -m venv $(ENV)
	$(BIN)/python $(PIP) torch==2.13.0 numpy
	$(BIN)/python $(PIP) --editable '.[dev,real]'
	@touch $@

plan: $(PLAN_ENV)/.ready ## plan MODEL on GPUS (minimax-m2 on 64) without torch
	$(PLAN_ENV)/bin/advisor plan --model $(MODEL) --gpus $(GPUS)

test: lint types imports ## everything CI checks but the slow and the GPU tests
	$(PYTEST) -n $(WORKERS) -m "$(NOT_USUAL)"

test-unit: $(ENV)/.ready ## unit, property, golden and documentation tests; no torch
	$(PYTEST) -n $(WORKERS) -m "$(NOT_USUAL) and not real"

test-real: $(ENV)/.ready ## tests against the installed megatron-core
	$(PYTEST) -n $(WORKERS) -m "real and not slow and not gpu"

test-full: lint types imports ## test and the slow tests
	$(PYTEST) -n $(WORKERS) -m "not gpu and not bench"

slurm-deps: ## the daemons of Slurm for the tests marked slurm (Debian, as root)
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client munge >/dev/null

# Its own environment on top of the test one: its pins must not move those of the tests.
$(NVRX_ENV)/.ready: $(ENV)/.ready
	$(BIN)/python -m venv $(NVRX_ENV)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$($(NVRX_ENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tests.pth"
	$(NVRX_ENV)/bin/python $(PIP) nvidia-resiliency-ext==0.4.1
	@touch $@

nvrx-deps: $(NVRX_ENV)/.ready ## nvidia-resiliency-ext for the tests marked nvrx

# Without dependencies: Bridge pins GPU packages (Transformer Engine, mamba-ssm) that its configuration classes do not need.
$(BRIDGE_ENV)/.ready: $(ENV)/.ready tests/real/bridge-requirements.txt
	$(BIN)/python -m venv $(BRIDGE_ENV)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$($(BRIDGE_ENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tests.pth"
	$(BRIDGE_ENV)/bin/python $(PIP) --no-deps --requirement tests/real/bridge-requirements.txt
	@touch $@

test-bridge: $(BRIDGE_ENV)/.ready ## exports and overlap against the installed megatron-bridge
	OMP_NUM_THREADS=1 $(BRIDGE_ENV)/bin/python -m pytest -n $(WORKERS) -m bridge tests/real

# Bridge 0.6 wants Python 3.12, for which torch comes with CUDA only: 6 GB, and not part of CI.
$(BRIDGE06_ENV)/.ready: pyproject.toml tests/real/bridge06-requirements.txt
	$(PYTHON312) -m venv $(BRIDGE06_ENV)
	$(BRIDGE06_ENV)/bin/python $(PIP) torch==2.13.0 megatron-core==0.19.2
	$(BRIDGE06_ENV)/bin/python $(PIP) --no-deps --requirement tests/real/bridge06-requirements.txt
	$(BRIDGE06_ENV)/bin/python $(PIP) --editable . pytest pytest-timeout pytest-xdist hypothesis jsonschema
	@touch $@

test-bridge06: $(if $(PYTHON312),$(BRIDGE06_ENV)/.ready) ## test-bridge with megatron-bridge 0.6, where Python 3.12 is
ifeq ($(PYTHON312),)
	@echo "skipped: megatron-bridge 0.6 needs Python 3.12, and there is no python3.12 here"
else
	OMP_NUM_THREADS=1 $(BRIDGE06_ENV)/bin/python -m pytest -n $(WORKERS) -m bridge tests/real
endif

bench: $(ENV)/.ready ## speed as ratios
	$(PYTEST) -s -m bench

lint: $(ENV)/.ready ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(ENV)/.ready ## mypy --strict on advisor/
	$(BIN)/mypy

imports: $(ENV)/.ready ## directions between the rooms (import-linter)
	$(BIN)/lint-imports

format: $(ENV)/.ready ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(ENV)/.ready ## write the generated parts: README blocks, docs/cli.md, golden files, notebook outputs
	$(BIN)/cog -r -I docs README.md docs/*.md
	$(PYTEST) $(PAGES) --update-golden

calibrate: $(ENV)/.ready ## fit the coefficients to the published runs anew (minutes), then `make docs`
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m advisor.fit.refit

clean: ## remove environments, caches and builds
	rm -rf $(PLAN_ENV) $(ENV) $(NVRX_ENV) $(BRIDGE_ENV) $(BRIDGE06_ENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
