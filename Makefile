# Two commands for a fresh machine with Python 3.11 or newer, pip, git and make:
#   make demo    install, index the standard library's documentation, ask it questions
#   make test    install, check style and types, run the tests
# And:
#   make soak    kill processes that change an index, fill the disk, flip bits, for ten minutes (MINUTES=10)
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
COLLECTIONS ?= collections
CACHE ?= .cache
MINUTES ?= 10

.PHONY: help demo test test-st test-page soak check screenshots projection clean

help:
	@grep -E '^#' Makefile | sed 's/^# //'

demo: $(VENV)/.installed-model,serve
	$(BIN)/secateurs demo

test: $(VENV)/.installed-model,serve,pyterrier,ray,bench,dev check
	$(BIN)/python -m pytest

check: $(VENV)/.installed-model,serve,pyterrier,ray,bench,dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The tests of the sentence-transformers encoder too. They need torch, which is large, so they are not in `make test`.
test-st: $(VENV)/.installed-model,st,bench,dev
	$(BIN)/python -m pytest tests/test_encoder_st.py

soak: $(VENV)/.installed-model,serve,pyterrier,ray,bench,dev
	$(BIN)/python tests/soak.py --minutes $(MINUTES)

# The tests of the explorer page too. They need a chromium on this machine.
test-page: $(VENV)/.installed-model,serve,pyterrier,ray,bench,dev,browser
	$(BIN)/python -m pytest tests/test_service_page.py

# The pictures of the explorer page in the documentation.
screenshots: demo $(VENV)/.installed-model,serve,pyterrier,ray,bench,dev,browser
	$(BIN)/python docs/screenshots.py demo.sec

# Train the built-in encoder's last layer again. COLLECTIONS holds squad-dev, nq-wiki-mini, boolq-wiki and the
# collections that the report is on; CACHE takes some 15 GB of intermediate results.
projection: $(VENV)/.installed-model,train
	$(BIN)/python training/projection.py --collections $(COLLECTIONS) --cache $(CACHE)/projection

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "secateurs needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-%: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[$*]"
	@touch $@

clean:
	rm -rf $(VENV) demo.sec .mypy_cache .ruff_cache .pytest_cache .hypothesis
