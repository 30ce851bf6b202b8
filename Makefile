# make run    install and start a broker on localhost:9092 and the console on localhost:9080
# make test   install everything the tests need and run all checks and tests
# make help   all targets

SHELL := /bin/sh
# Write bytecode even if the environment disables it, because it halves the start time of a broker.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help

ifeq ($(shell test -w . && echo yes),yes)
VENV   := .venv
else
# A read-only checkout: the environment, a copy of the package and the broker's data are in the user's cache.
CACHE  := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/kavka
VENV   := $(CACHE)/venv
DATA   := --override log.dirs=$(CACHE)/data
endif
PY     := $(VENV)/bin/python
BASE   := $(VENV)/.installed
DEV    := $(VENV)/.installed-dev
PIP    := PIP_DISABLE_PIP_VERSION_CHECK=1 $(PY) -m pip install --quiet --editable

# The first suitable Python on the PATH; override with `make PYTHON=/path/to/python`.
PYTHON ?= $(shell for name in python3.13 python3.12 python3.11 python3.14 python3 python; do \
	if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo "$$name"; break; fi; done)

.PHONY: help setup run test test-fast test-matrix check audit compile bench demo chaos fuzz gen docs site clean

help:
	@echo 'make run        start a broker on localhost:9092 with data in ./kavka-data and the console on'
	@echo '                http://localhost:9080 (ARGS="--override num.partitions=3", ARGS=--no-console)'
	@echo 'make setup      install everything for development into $(VENV)'
	@echo 'make test       all checks and all tests'
	@echo 'make test-fast  the tests that are fast and need no Java'
	@echo 'make test-matrix  every combination of versions and settings of which make test runs a sample'
	@echo 'make check      ruff, mypy, layers, language, links, generated code'
	@echo 'make audit      look up known vulnerabilities of the dependencies'
	@echo 'make compile    compile the hot modules in place (repeat after each change)'
	@echo 'make bench      compare with Apache Kafka'
	@echo 'make demo       a broker, a producer of text and a live word count on Spark (kavka quickstart: all steps)'
	@echo 'make chaos      inject faults into a cluster under load (ARGS="--faults kill,pause --rounds 20")'
	@echo 'make fuzz       fuzz every decoder for ten minutes (ARGS="batches --coverage --seconds 3600")'
	@echo 'make gen        regenerate code from schemas/ and the configuration tables'
	@echo 'make docs       regenerate the references of settings and tools'
	@echo 'make site       build the documentation as a site in build/site'
	@echo 'make clean      remove build products, but not the data of brokers'

$(PY):
	@test -n "$(PYTHON)" || { echo 'Python 3.11 or newer is required, and none is on the PATH' >&2; exit 1; }
	@echo "Creating $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo '(on Debian: apt install python3-venv)' >&2; exit 1; }

$(BASE): pyproject.toml | $(PY)
	@echo "Installing Kavka into $(VENV)"
ifdef CACHE
	@rm -rf $(CACHE)/source && mkdir -p $(CACHE)/source && \
		cp -R src pyproject.toml setup.py MANIFEST.in README.md LICENSE CHANGELOG.md $(CACHE)/source && \
		chmod -R u+w $(CACHE)/source
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(PY) -m pip install --quiet '$(CACHE)/source[console]' && \
		rm -rf $(CACHE)/source && touch $@
else
	@$(PIP) '.[console]' && touch $@
endif

$(DEV): pyproject.toml | $(PY)
	@echo "Installing Kavka and its development dependencies into $(VENV)"
	@$(PIP) '.[dev]' && touch $@ $(BASE)

setup: $(DEV)

run: $(BASE)
	@$(PY) -m kavka.cli.main server $(DATA) $(ARGS) --console

test: export KAVKA_RETRIED_TESTS := .cache/retried-tests
test: check
	@mkdir -p .cache && rm -f $(KAVKA_RETRIED_TESTS)
	@$(PY) -m tests.support.jars || test "$$CI" != true
	@$(PY) -m tests.support.postgres || test "$$CI" != true
	$(PY) -m pytest --numprocesses auto tests/unit
	$(PY) -m tests.support.retry --numprocesses 2 --dist loadfile -m 'not matrix' tests/integration
	KAVKA_FORM=compiled $(PY) -m tests.support.retry tests/unit/client tests/unit/pipeline/columns \
		tests/integration/test_our_producer.py tests/integration/test_our_consumer.py
	@! test -s $(KAVKA_RETRIED_TESTS) || { echo 'PASSED ALONE, to be fixed:'; cat $(KAVKA_RETRIED_TESTS); }

test-fast: $(DEV)
	$(PY) -m pytest --numprocesses auto -m 'not slow and not java and not matrix' tests

test-matrix: $(DEV)
	@$(PY) -m tests.support.jars || test "$$CI" != true
	KAVKA_TEST_TARGET=kavka,apache $(PY) -m tests.support.retry --numprocesses 2 --dist loadfile -m matrix tests

check: $(DEV)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check --quiet .
	$(PY) -m mypy
	$(PY) tools/check_layers.py
	$(PY) tools/check_language.py
	$(PY) tools/check_links.py
	$(PY) tools/generate_protocol.py --check
	$(PY) tools/generate_blocking_admin.py --check
	$(PY) tools/generate_client_settings.py --check
	$(PY) tools/make_config_reference.py --check
	$(PY) tools/make_tool_reference.py --check
	$(PY) tools/make_connect_reference.py --check
	$(PY) tools/make_api_reference.py --check
	@$(PY) tools/count_lines.py

audit: $(DEV)
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(PY) -m pip install --quiet pip-audit
	@$(PY) tools/audit.py

compile: $(DEV)
	KAVKA_COMPILE=1 $(PY) setup.py --quiet build_ext --inplace

bench: compile
	$(PY) -m bench $(ARGS)

demo: $(DEV)
	@$(PY) -m kavka.cli.main quickstart --step words $(ARGS)

chaos: $(DEV)
	@$(PY) -m tests.chaos $(ARGS)

fuzz: $(DEV)
	@$(PY) -m pip install --quiet atheris || echo 'atheris is not available: fuzzing without coverage'
	@$(PY) -m tests.fuzz --seconds 600 $(ARGS)

gen: $(DEV)
	$(PY) tools/generate_protocol.py
	$(PY) tools/generate_blocking_admin.py
	$(PY) tools/generate_client_settings.py

docs: $(DEV)
	$(PY) tools/make_config_reference.py
	$(PY) tools/make_tool_reference.py
	$(PY) tools/make_connect_reference.py
	$(PY) tools/make_api_reference.py

site: $(DEV)
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(PY) -m pip install --quiet 'zensical>=0.0.73'
	@$(PY) tools/build_site.py

clean:
	find src -name '*.so' -delete
	rm -rf $(VENV) .cache build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} +
