# Two commands for a fresh machine with Python 3.11 or newer, pip, git and make: `make demo` and `make test`.
# `make help` lists the others.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
COLLECTIONS ?= collections
CACHE ?= .cache
MINUTES ?= 10
WORKERS ?= --numprocesses auto --dist loadgroup
EVERYTHING := $(VENV)/.installed-model,hub,serve,pyterrier,langchain,llama-index,haystack,rerankers,dspy,mcp,lancedb,qdrant,voyager,milvus,ray,bench,dev

.PHONY: help demo quick test check test-torch test-pylate test-page test-wheel soak dist site diagram screenshots projection background clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

demo: $(VENV)/.installed-model,serve  ## install, index the documentation of the standard library, ask it questions
	$(BIN)/secateurs demo

quick: $(EVERYTHING)  ## style, types, and the tests that need no cluster, no server and no killed process: about a minute
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -m "not slow" $(WORKERS)

test: $(EVERYTHING) check  ## install, check style and types, run all tests
	$(BIN)/python -m pytest $(WORKERS)

check: $(EVERYTHING)  ## check style (ruff) and types (mypy)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-torch: $(VENV)/.installed-model,st,mteb,bench,dev  ## the tests of sentence-transformers, MTEB and PyLate; installs torch
	$(BIN)/python -m pytest tests/test_encoder_st.py tests/test_mteb.py
	$(MAKE) test-pylate VENV=$(VENV)-pylate

# Apart, because PyLate needs an earlier version of sentence-transformers.
test-pylate: $(VENV)/.installed-model,pylate,bench,dev
	$(BIN)/python -m pytest tests/test_pylate.py

test-page: $(VENV)/.installed-model,serve,pyterrier,langchain,llama-index,haystack,rerankers,dspy,mcp,ray,bench,dev,browser  ## the tests of the explorer page; needs a chromium
	$(BIN)/python -m pytest tests/test_service_page.py

soak: $(EVERYTHING)  ## kill processes that change an index, fill the disk, flip bits, for MINUTES=10
	$(BIN)/python tests/soak.py --minutes $(MINUTES)

dist: $(VENV)/.installed-dev  ## build the source distribution and the wheel, in dist/
	rm -rf dist
	$(BIN)/python -m build

test-wheel: dist  ## install the wheel in a new virtual environment and run the README's Python there
	$(BIN)/python tests/wheel.py dist/*.whl

site: $(VENV)/.installed-dev  ## build the documentation as a site, in site/; a link that leads nowhere is an error
	$(BIN)/mkdocs build --strict

diagram:  ## draw docs/images/rooms.svg from the import graph
	$(PYTHON) docs/rooms.py

screenshots: demo $(VENV)/.installed-model,serve,pyterrier,langchain,llama-index,haystack,rerankers,dspy,mcp,ray,bench,dev,browser  ## take the pictures of the explorer page
	$(BIN)/python docs/screenshots.py demo.sec

# COLLECTIONS holds squad-dev, nq-wiki-mini, boolq-wiki and the collections of the report. CACHE takes about 15 GB.
projection: $(VENV)/.installed-model,train  ## train the linear layer of the built-in encoder (COLLECTIONS=, CACHE=)
	$(BIN)/python training/projection.py --collections $(COLLECTIONS) --cache $(CACHE)/projection

# COLLECTIONS holds squad-dev, nq-wiki-mini, boolq-wiki and questions.
background: $(VENV)/.installed-model  ## count the table of English that comes with the package (COLLECTIONS=)
	$(BIN)/python training/background.py --collections $(COLLECTIONS)

clean:  ## remove the virtual environment, the demo index and caches
	rm -rf $(VENV) $(VENV)-pylate demo.sec .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "secateurs needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-%: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[$*]"
	@touch $@
