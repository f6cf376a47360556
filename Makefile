# TileSight: set-up, the first run, and the checks. `make` alone lists what there is.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help tune test check docs format clean

VENV ?= .venv
BIN := $(VENV)/bin
KERNEL ?= flash_attention
TARGET ?= h100
ARGS ?=
TEST_ARGS ?=
# Processes that run tests, for two cores: some tests wait for other processes. Each begins with a third of the
# tests, so that tests that share a fixture stay together.
TEST_JOBS ?= 3
# the release that set-up takes where no NVIDIA driver is found; pyproject.toml has the range that is allowed
TORCH_CPU := torch==2.13.0+cpu
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

help: ## list the targets
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/^([a-z]+):.*## (.*)/make \1\t\2/' | expand -t 16
	@echo 'KERNEL, TARGET and ARGS change what `make tune` runs, TEST_ARGS is handed to pytest, PYTHON names an interpreter.'

tune: $(VENV)/run.stamp ## set up, then: tilesight tune flash_attention --target h100
	@$(BIN)/tilesight tune $(KERNEL) --target $(TARGET) $(ARGS)

# Bytecode is written even where the environment forbids it: hundreds of processes import the same modules.
# One OpenMP thread a process: the processes of TEST_JOBS share the cores.
test: check ## set up, then all checks and tests, except those that take long; with TEST_ARGS=--full those, too
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal $(TEST_ARGS)

check: $(VENV)/dev.stamp ## set up, then ruff, mypy and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: $(VENV)/dev.stamp ## set up, then build the documentation as a site that opens offline, into build/site
	$(BIN)/python docs/build.py

format: $(VENV)/dev.stamp ## let ruff mend and format what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the environment, builds and caches; the performance database stays
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Set-up is repeated only when pyproject.toml has changed since.
$(VENV)/run.stamp: pyproject.toml | $(BIN)/pip
	@$(call install_torch)
	@echo 'set-up: installing TileSight and what it needs'
	@$(PIP) --editable .
	@touch $@

$(VENV)/dev.stamp: pyproject.toml | $(BIN)/pip
	@$(call install_torch)
	@echo 'set-up: installing TileSight, what it needs, and the tools of its development'
	@$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/run.stamp

# PyPI's torch brings CUDA's libraries, several GB. Without an NVIDIA GPU the CPU build does: first from the package
# sources that pip is set up with, then from PyTorch's own index, and where neither has it, PyPI's build after all.
define install_torch
	if command -v nvidia-smi >/dev/null; then \
	  echo 'set-up: an NVIDIA driver is here, taking the CUDA build of PyTorch'; \
	else \
	  echo 'set-up: no NVIDIA driver, taking the CPU build of PyTorch'; \
	  $(PIP) '$(TORCH_CPU)' 2>/dev/null \
	    || $(PIP) --retries 1 --extra-index-url $(TORCH_CPU_INDEX) '$(TORCH_CPU)' 2>/dev/null \
	    || echo 'set-up: the CPU build of PyTorch is out of reach; the CUDA build of PyPI works too, but is several GB'; \
	fi
endef

# An environment with pip in it. Debian and Ubuntu keep that part of Python (ensurepip) in a package of its own;
# virtualenv does without, and as root, in a container say, the package can be installed right away.
$(BIN)/pip:
	@python=; for name in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	  if $$name -c 'import sys; print((3, 11) <= sys.version_info < (3, 14))' 2>/dev/null | grep -q True; then python=$$name; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo 'set-up: Python 3.11, 3.12 or 3.13 is needed; $(or $(PYTHON),what is on PATH) is none: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)' >&2; exit 1; \
	fi; \
	package=$$($$python -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	echo "set-up: making $(VENV) with $$($$python --version)"; \
	rm -rf $(VENV); \
	if $$python -c 'import ensurepip' 2>/dev/null; then $$python -m venv $(VENV); \
	elif $$python -c 'import virtualenv' 2>/dev/null; then $$python -m virtualenv --quiet $(VENV); \
	elif $$python -m pip --version >/dev/null 2>&1; then \
	  tools=$$(mktemp -d); \
	  $$python -m pip install --quiet --target "$$tools" virtualenv && PYTHONPATH="$$tools" $$python -m virtualenv --quiet $(VENV); \
	  status=$$?; rm -rf "$$tools"; exit $$status; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "set-up: $$package is missing; installing it, since you are root"; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$$package" >/dev/null && $$python -m venv $(VENV); \
	else \
	  echo "set-up: this Python cannot make environments; install it first: sudo apt install $$package" >&2; exit 1; \
	fi
