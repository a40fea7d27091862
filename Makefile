# Everything runs in .venv, which is made on first use and brought up to date
# only when pyproject.toml or constraints.txt change.
# What runs torch begins with $(SOUND), or $(call sound,...) in another environment.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

# Some virtual machines report AMX and fault on it. Where a probe finds that, this sets the variable
# that avoids it, and elsewhere nothing. It is expanded with a recipe, when the environment is there.
sound = $(shell $(1)/python tools/probe_bfloat16.py)
SOUND = $(call sound,$(BIN))

# Two test workers on two cores: more threads would only fight each other. Bytecode is written even
# where the surroundings forbid it: the tests start many processes.
PYTEST = $(SOUND) OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help install browser lint test test-all test-timm test-jax test-floor docs demo bench format clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(STAMP) ## Make .venv and install the package with its development tools

# The constraint keeps development on one version of torch; the package accepts any since 2.6.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --constraint constraints.txt --editable ".[dev]"
	touch $@

# The packages that the library integrates with are large: only test-all needs them.
INTEGRATIONS := .venv/.integrations
$(INTEGRATIONS): $(STAMP)
	$(BIN)/python -m pip install --constraint constraints.txt --editable ".[dev,integrations,optimizers,cluster]"
	touch $@

DOCS := .venv/.docs
$(DOCS): $(STAMP)
	$(BIN)/python -m pip install --constraint constraints.txt --editable ".[dev,docs]"
	touch $@

lint: $(STAMP) ## Check style, formatting, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# The page of a report is tested in a real browser, where one is there or may be installed.
browser:
	@tools/install_chromium.sh

test: lint browser ## Lint, then run the tests except those marked slow
	$(PYTEST) -m "not slow"

test-all: $(INTEGRATIONS) $(DOCS) lint browser test-timm test-jax ## Lint, then run every test, those of the integrations included
	$(PYTEST)

# timm wants torchvision, which does not go with every torch: it has an environment of its own.
TIMM := .venv-timm/.installed
$(TIMM): pyproject.toml constraints.txt
	test -x .venv-timm/bin/python || $(PYTHON) -m venv .venv-timm
	.venv-timm/bin/python -m pip install --constraint constraints.txt --editable ".[cli]" pyyaml pillow huggingface_hub pytest
	.venv-timm/bin/python -m pip install --no-deps timm torchvision
	touch $@

test-timm: $(TIMM) ## Audit models of timm through the command line
	$(call sound,.venv-timm/bin) OMP_NUM_THREADS=1 .venv-timm/bin/python -m pytest --noconftest -p no:cacheprovider tests/cli/timm_check.py

# JAX and Keras are for the tests of arrays from elsewhere alone: another environment of its own.
JAX := .venv-jax/.installed
$(JAX): pyproject.toml constraints.txt
	test -x .venv-jax/bin/python || $(PYTHON) -m venv .venv-jax
	.venv-jax/bin/python -m pip install --constraint constraints.txt --editable . jax jaxlib keras pytest
	touch $@

test-jax: $(JAX) ## Norms of kernels and functions of JAX and Keras
	$(call sound,.venv-jax/bin) OMP_NUM_THREADS=1 KERAS_BACKEND=jax .venv-jax/bin/python -m pytest --noconftest -p no:cacheprovider tests/operators/jax_check.py

# The lowest versions that pyproject.toml promises have an environment of their own too.
FLOOR := .venv-floor/.installed
$(FLOOR): pyproject.toml constraints-floor.txt
	test -x .venv-floor/bin/python || $(PYTHON) -m venv .venv-floor
	.venv-floor/bin/python -m pip install --constraint constraints-floor.txt --editable ".[dev]"
	touch $@

test-floor: $(FLOOR) ## Run the tests except the slow ones with the lowest versions that are promised
	$(call sound,.venv-floor/bin) OMP_NUM_THREADS=1 .venv-floor/bin/python -m pytest -n 2 -m "not slow"

docs: $(DOCS) ## Build the documentation's site
	$(SOUND) NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

demo: $(STAMP) ## Train small networks on digits, attack them, and write the report
	$(SOUND) $(BIN)/spectralclip demo

bench: $(STAMP) ## Run the benchmarks: extraction, bounds, clipping, training, audit, method_matrix and methods
	$(SOUND) $(BIN)/python -m benchmarks.extraction
	$(SOUND) $(BIN)/python -m benchmarks.bounds
	$(SOUND) $(BIN)/python -m benchmarks.clipping
	$(SOUND) $(BIN)/python -m benchmarks.training
	$(SOUND) $(BIN)/python -m benchmarks.audit
	$(SOUND) $(BIN)/python -m benchmarks.method_matrix
	$(SOUND) $(BIN)/python -m benchmarks.methods

format: $(STAMP) ## Fix formatting and what the linter can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## Remove .venv, caches and built files
	rm -rf .venv .venv-timm .venv-jax .venv-floor build dist site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests oracle conformance tools benchmarks experiments -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
