# make ablate: which optimization pays here?   make test: does everything work?   Both make .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PINS := pyproject.toml constraints.txt
OMNI := .vllm-omni
OMNI_PIP := $(OMNI)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps
EXECUTOR ?= uni

.PHONY: ablate test notebooks races simulate results lint env clean vllm-omni test-vllm-omni

ablate: $(VENV)/.lab
	$(BIN)/python -m omnilab.ablate $(ARGS)

# Files in their own order: xdist would put those with few tests last, which here are the longest.
test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

# Each in full on thin: most of an hour. OMNILAB_NOTEBOOKS_OUT=DIR keeps the executed copies.
notebooks: $(VENV)/.dev
	OMNILAB_NOTEBOOK_MODEL=thin $(BIN)/python -m pytest tests/notebook/test_notebooks.py --timeout=0 $(ARGS)

races: $(VENV)/.dev
	$(BIN)/python -m pytest -m races --timeout=0 $(ARGS)

simulate: $(VENV)/.dev
	$(BIN)/python -m pytest -m simulate --timeout=0 $(ARGS)

# Runs that are kept verify only with the words of this version: after changing a report's.
results: $(VENV)/.dev
	for run in experiments/results/*.zip; do \
		$(BIN)/python -m omnilab.pack $$run --rewrite --out $$run.new && mv $$run.new $$run || exit 1; done

# The real vLLM-Omni on a CPU: an environment of its own (2.9 GB) and the folder that it serves.
vllm-omni: $(OMNI)/.ready

# EXECUTOR=mp: a worker process a stage, as experiments run it; twice as long.
test-vllm-omni: $(VENV)/.dev $(OMNI)/.ready
	OMNILAB_VLLM_OMNI_PYTHON=$(abspath $(OMNI)/bin/python) OMNILAB_VLLM_OMNI_EXECUTOR=$(EXECUTOR) \
		$(BIN)/python -m pytest tests/vllm_omni tests/vllm_thinker $(ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

env: $(VENV)/.dev

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "omnilab needs Python 3.11 or newer: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)

# torch by itself first: the largest part, and the one whose version the rest must fit.
$(VENV)/.torch: constraints.txt | $(BIN)/python
	$(PIP) "$$(grep -m1 '^torch==' constraints.txt)"
	touch $@

$(VENV)/.lab: $(PINS) $(VENV)/.torch
	$(PIP) --editable '.[lab]'
	touch $@

$(VENV)/.dev: $(PINS) $(VENV)/.lab
	$(PIP) --editable '.[all]'
	touch $@

$(OMNI)/.ready: vllm-omni.txt pyproject.toml $(wildcard omnilab/vllm_omni/cpu/alias/*) | $(VENV)/.lab
	test -x $(OMNI)/bin/python || $(PYTHON) -m venv $(OMNI)
	$(OMNI_PIP) --requirement vllm-omni.txt
	$(OMNI_PIP) ./omnilab/vllm_omni/cpu/alias --editable .
	test -d $(OMNI)/parity || $(BIN)/python -m omnilab.models parity --out $(OMNI)/parity
	touch $@
