# The two commands of a fresh machine are `make bench` and `make test`; both set everything up first.
# make bench EXTRA=cuda12 on a GPU host; PYTHON=python3.12 to choose the interpreter.
PYTHON ?= python3
VENV ?= .venv
EXTRA ?=
ARGS ?=
BIN := $(VENV)/bin
DEV_STAMP := $(VENV)/.installed-dev
RUN_STAMP := $(VENV)/.installed$(if $(EXTRA),-$(EXTRA),)

.PHONY: bench test test-all lint format clean

bench: $(RUN_STAMP)
	$(BIN)/jaxdp bench --strategy ddp $(ARGS)

test: $(DEV_STAMP)
	$(BIN)/python -m pytest $(ARGS)

test-all: $(DEV_STAMP)
	$(BIN)/python -m pytest -m "slow or not slow" $(ARGS)

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(DEV_STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(RUN_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".$(if $(EXTRA),[$(EXTRA)],)"
	touch $@

$(DEV_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
