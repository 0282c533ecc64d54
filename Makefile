# Everything runs in a virtual environment inside the checkout, built on first use.
#   make demo   learn CartPole and draw a picture
#   make test   run the tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all lint bench docs calibrate clean help

help:
	@sed -n '1,3s/^# *//p' Makefile
	@echo "  make test-all  the slow tests too, with all shapes checked"
	@echo "  make lint   ruff, pyright and the import contract"
	@echo "  make bench  speed and memory, against rivals in the same run"
	@echo "  make docs   the documentation as a site"
	@echo "  make clean  remove the virtual environment and caches"

demo: $(VENV)/.installed
	$(BIN)/bayespg demo --out results

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest

test-all: $(VENV)/.installed-dev
	CHECK_SHAPES=1 $(BIN)/python -m pytest -m ''

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/run.py

docs: $(VENV)/.installed-docs
	$(BIN)/python docs/render.py
	$(BIN)/python docs/notebooks.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The site is at site/index.html (search asks for a server: $(BIN)/python -m http.server -d site)"

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; v >= (3, 11) or sys.exit("bayespg needs Python 3.11 or newer, this is %d.%d; try: make PYTHON=python3.12 ..." % v)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

$(VENV)/.installed-docs: pyproject.toml | $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache .jax_cache build dist site
