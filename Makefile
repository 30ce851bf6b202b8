# make run    a broker on localhost:9092 and its console on localhost:9080, with nothing to install or configure before
# make test   everything that is checked, with all the set-up that it needs
# make help   the rest

SHELL := /bin/sh
# Compiled modules are kept, whatever the machine says: a broker starts in half the time.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help

VENV   := .venv
PY     := $(VENV)/bin/python
BASE   := $(VENV)/.installed
DEV    := $(VENV)/.installed-dev
PIP    := PIP_DISABLE_PIP_VERSION_CHECK=1 $(PY) -m pip install --quiet --editable

# The first Python on the PATH that is new enough; `make PYTHON=/path/to/python` takes another.
PYTHON ?= $(shell for name in python3.13 python3.12 python3.11 python3.14 python3 python; do \
	if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo "$$name"; break; fi; done)

.PHONY: help setup run test test-fast check audit compile bench demo chaos fuzz gen docs clean

help:
	@echo 'make run        start a broker on localhost:9092, data in ./kavka-data (ARGS="--override num.partitions=3"),'
	@echo '                and the console on http://localhost:9080 (ARGS=--no-console: without it)'
	@echo 'make setup      install everything for development into $(VENV)'
	@echo 'make test       all checks and all tests'
	@echo 'make test-fast  the tests that take no Java and no patience'
	@echo 'make check      ruff, mypy, the layers, generated code'
	@echo 'make audit      look up known vulnerabilities of the dependencies (asks PyPI)'
	@echo 'make compile    compile the hot parts of the clients in place (after each change of them again)'
	@echo 'make bench      compare with Apache Kafka'
	@echo 'make demo       a broker, the word count on Spark and a feeder of text; the counts move'
	@echo 'make chaos      faults against a cluster under load (ARGS="--faults kill,pause --rounds 20")'
	@echo 'make fuzz       mutated inputs for every decoder, ten minutes (ARGS="batches --coverage --seconds 3600")'
	@echo 'make gen        write the protocol code again from schemas/'
	@echo 'make docs       write the references of settings and tools again'
	@echo 'make clean      remove what was built; data of a broker stays'

$(PY):
	@test -n "$(PYTHON)" || { echo 'Python 3.11 or newer is needed, and none is on the PATH' >&2; exit 1; }
	@echo "Making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo '(on Debian: apt install python3-venv)' >&2; exit 1; }

$(BASE): pyproject.toml | $(PY)
	@echo "Installing Kavka into $(VENV)"
	@$(PIP) '.[console]' && touch $@

$(DEV): pyproject.toml | $(PY)
	@echo "Installing Kavka and what its development needs into $(VENV)"
	@$(PIP) '.[dev]' && touch $@ $(BASE)

setup: $(DEV)

run: $(BASE)
	@$(PY) -m kavka.cli.main server $(ARGS) --console

test: check
	@$(PY) -m tests.support.jars || test "$$CI" != true
	@$(PY) -m tests.support.postgres || test "$$CI" != true
	$(PY) -m pytest --numprocesses auto tests/unit
	$(PY) -m tests.support.once_more --numprocesses 2 --dist loadfile tests/integration
	KAVKA_FORM=compiled $(PY) -m tests.support.once_more tests/unit/client tests/integration/test_our_producer.py \
		tests/integration/test_our_consumer.py

test-fast: $(DEV)
	$(PY) -m pytest --numprocesses auto -m 'not slow and not java' tests

check: $(DEV)
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) tools/check_layers.py
	$(PY) tools/generate_protocol.py --check
	$(PY) tools/generate_blocking_admin.py --check
	$(PY) tools/make_config_reference.py --check
	$(PY) tools/make_tool_reference.py --check
	$(PY) tools/make_connect_reference.py --check

audit: $(DEV)
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(PY) -m pip install --quiet pip-audit
	@$(PY) tools/audit.py

compile: $(DEV)
	KAVKA_COMPILE=1 $(PY) setup.py --quiet build_ext --inplace

bench: compile
	$(PY) -m bench $(ARGS)

demo: $(DEV)
	@$(PY) examples/demo.py $(ARGS)

chaos: $(DEV)
	@$(PY) -m tests.chaos $(ARGS)

fuzz: $(DEV)
	@$(PY) -m pip install --quiet atheris || echo 'atheris is not available: fuzzing without coverage'
	@$(PY) -m tests.fuzz --seconds 600 $(ARGS)

gen: $(DEV)
	$(PY) tools/generate_protocol.py
	$(PY) tools/generate_blocking_admin.py

docs: $(DEV)
	$(PY) tools/make_config_reference.py
	$(PY) tools/make_tool_reference.py
	$(PY) tools/make_connect_reference.py

clean:
	find src -name '*.so' -delete
	rm -rf $(VENV) .cache build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} +
