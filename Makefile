# PYTHON (3.10 or newer) and make are enough: every target makes what it needs, once.
PYTHON ?= python3
# TORCH=2.6 uses that release of torch, in an environment of its own.
TORCH ?=

VENV := .venv$(TORCH:%=-torch%)
PY := $(VENV)/bin/python
DEV := $(VENV)/.installed-dev
DOCS := $(VENV)/.installed-docs

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test check bench mutants dist docs clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

demo: $(DEV) ## compare Moment Exchange with its controls on handwritten digits
	$(PY) -m momentex compare digits

test: $(DEV) ## run the tests, the docstrings' examples and the documents' code
	$(PY) -m pytest

check: $(DEV) ## check format, lint and types
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m pyrefly check --python-interpreter-path $(PY)

bench: $(DEV) ## measure the operator, the training step and the training loop
	$(PY) -m benchmarks.run
	$(PY) -m benchmarks.loop

mutants: $(DEV) ## plant known faults and see that a test catches each
	$(PY) tests/mutants.py

dist: $(DEV) ## build sdist and wheel, and import from the wheel alone
	rm -rf dist
	$(PY) -m build
	$(PY) -m pip install --quiet --no-deps --no-index --target dist/unpacked dist/*.whl
	cd dist/unpacked && test -f momentex/py.typed && \
	  $(abspath $(PY)) -c 'from momentex import *; import momentex; print(momentex.__file__)'

docs: $(DOCS) ## build the documentation into site/
	$(PY) -m mkdocs build --strict

clean: ## remove what the targets made, but for the environments
	rm -rf dist site .hypothesis .pytest_cache .ruff_cache
	find src tests benchmarks docs -name __pycache__ -prune -exec rm -rf {} +

# A half-made environment would pass for a whole one the next time, so it is removed.
$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "momentex needs Python 3.10 or newer; '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)." \
	    "Name another: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
	$(PY) -m pip install --quiet --upgrade pip

$(VENV)/.installed-%: pyproject.toml | $(PY)
	$(PY) -m pip install --editable ".[$*]" $(TORCH:%="torch==%.*")
	@touch $@
