# Each target does all set-up itself; scripts/provision.sh takes seconds when there is nothing left to do.
# FLUXBED_VENV=DIR puts the virtual environment elsewhere than .venv.
SHELL := /bin/bash
VENV := $(or $(FLUXBED_VENV),$(CURDIR)/.venv)
FUZZ_SECONDS ?= 600

.PHONY: help demo test docs fuzz provision clean

help:
	@printf '%s\n' \
	  'make demo       replay the bundled training trace on an emulated optical fabric: predicted against measured' \
	  'make test       style, types, import direction, all tests (fabric tests need root)' \
	  'make docs       the documentation, into docs/_build/html' \
  'make fuzz       10,000 mutations of each example trace, then the property tests with ever new examples, for FUZZ_SECONDS=$(FUZZ_SECONDS)' \
	  'make provision  system packages, virtual environment, compiled kernels' \
	  'make clean      remove caches, build products and what our runs left in the kernel; runs/ stays'

provision:
	@scripts/provision.sh

demo: provision
	@scripts/demo.sh

test: provision
	@scripts/test.sh

docs: provision
	@$(VENV)/bin/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo docs/_build/html/index.html

fuzz: provision
	@FLUXBED_FUZZ=10000 FLUXBED_FUZZ_SEED=$$RANDOM$$RANDOM $(VENV)/bin/python -m pytest -q tests/testbed/traces/test_fuzz.py
	@end=$$((SECONDS + $(FUZZ_SECONDS))); while [ $$SECONDS -lt $$end ]; do seed=$$RANDOM$$RANDOM; \
	  $(VENV)/bin/python -m pytest -q -m hypothesis --ignore=tests/fabric --hypothesis-seed=$$seed tests || \
	  { echo "make fuzz: found something; --hypothesis-seed=$$seed shows it again"; exit 1; }; done

clean:
	@if [ -x $(VENV)/bin/fluxbed ]; then $(VENV)/bin/fluxbed clean || true; fi
	rm -rf build dist *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache docs/_build
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
