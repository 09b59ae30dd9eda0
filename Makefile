# The two commands of a fresh machine are `make bench` and `make test`; both set everything up first.
# make bench EXTRA=cuda12 on a GPU host; PYTHON=python3.12 to choose the interpreter; ARGS=... to add flags.
PYTHON ?= python3
VENV ?= .venv
EXTRA ?=
ARGS ?=
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.installed$(if $(EXTRA),-$(EXTRA),)
DEV_STAMP := $(VENV)/.installed-dev
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# As an installed wheel would be: the first start of a command is then as quick as the later ones.
COMPILE := $(BIN)/python -m compileall -q jaxdp sims cli
PYTEST := $(BIN)/python -m pytest

# What the newest JAX is tried with: the parts that JAX's own changes can break.
QUICK := tests/test_mesh_laws.py tests/test_mesh_layout.py tests/test_collectives.py tests/test_hlo.py \
	tests/test_model.py tests/test_train.py

.PHONY: bench test test-slow test-quick lint format clean

bench: $(RUN_STAMP)
	$(BIN)/jaxdp bench --strategy ddp $(ARGS)

test: $(DEV_STAMP)
	$(PYTEST) -n 2 --dist loadfile $(ARGS)

test-slow: $(DEV_STAMP)
	$(PYTEST) -n 2 --dist loadfile -m slow $(ARGS)

test-quick: $(DEV_STAMP)
	$(PYTEST) -n 2 --dist loadfile $(QUICK) $(ARGS)

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
	$(PIP) -e ".$(if $(EXTRA),[$(EXTRA)],)"
	$(COMPILE)
	touch $@

$(DEV_STAMP): pyproject.toml | $(BIN)/python
	$(PIP) -e ".[dev]"
	$(COMPILE)
	touch $@

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
