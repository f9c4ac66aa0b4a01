# `make train` runs the default training, `make test` proves the project; both set up .venv first.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
SIMULATION := .venv-simulation
DOCS := .venv-docs
# One thread per test process: the tests run in parallel, and tiny operators gain nothing from more.
# Bytecode is always written: otherwise every process that tests start would compile the package again.
TEST_ENV := OMP_NUM_THREADS=1 MPLBACKEND=Agg PYTHONDONTWRITEBYTECODE=

.PHONY: train test browser test-quick test-deep test-faults test-simulation test-wheel lint lint-quick graph size gallery results docs clean

train: $(VENV)/.ready
	$(BIN)/submodel train

# Types are checked in parallel with the tests and printed after them; a failure of either fails the command.
test: lint-quick browser
	@types=$$(mktemp); $(BIN)/mypy >$$types 2>&1 & mypy=$$!; \
	trap 'kill $$mypy 2>/dev/null; rm -f $$types' EXIT; \
	$(TEST_ENV) $(BIN)/pytest -n auto --dist worksteal; tests=$$?; \
	wait $$mypy; typed=$$?; cat $$types; exit $$((tests ? tests : typed))

# The tests of pages need a browser: install it if possible, else print that it is missing.
browser:
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing chromium for the tests of pages, once"; \
		export DEBIAN_FRONTEND=noninteractive; \
		{ apt-get update && apt-get install -y --no-install-recommends chromium chromium-driver fonts-dejavu-core; } \
			>/dev/null 2>&1 || echo "chromium cannot be installed here: the tests of pages will be skipped"; \
	else echo "no chromium and chromedriver here: the tests of pages will be skipped"; fi

# For daily work, in about a minute and without linters: all tests but those marked `slow` (half a second or more).
test-quick: $(VENV)/.ready
	$(TEST_ENV) $(BIN)/pytest -n auto --dist worksteal -m 'not slow and not faults and not deep and not docs'

# 20,000 damaged files and messages for every reader: a quarter of an hour.
test-deep: $(VENV)/.ready
	$(TEST_ENV) $(BIN)/pytest tests -m deep -n auto -rP

# Real processes on loopback under kills, stops and false messages: a quarter of an hour.
test-faults: $(VENV)/.ready
	$(TEST_ENV) $(BIN)/pytest tests/faults -m faults -v --durations=0

# Build the wheel and install it without constraints: several minutes, needs a network.
test-wheel:
	PYTHON=$(PYTHON) tools/test_wheel.sh

lint: lint-quick
	$(BIN)/mypy

lint-quick: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

# The import graph, its picture, the keys of the configuration and the commands, written into docs/ from the code;
# and the file that shells complete keys from.
graph: $(VENV)/.ready
	MPLBACKEND=Agg $(BIN)/python -m tools

# Count the files, functions and jumps of a round, of the start of a run and of a cut, and lines by package.
size: $(VENV)/.ready
	@$(BIN)/python -m tools.size

# Generate the tables and figures of docs/results and the evidence of `submodel advise` from the records in results/.
results: $(VENV)/.ready
	MPLBACKEND=Agg $(BIN)/python -m tools.results

# Draw the pictures of docs/gallery.md from the schemes.
gallery: $(VENV)/.ready
	$(BIN)/python -m tools.gallery

# Build the documentation as a site: open site/index.html. Neither building nor reading fetches anything.
docs: $(DOCS)/.ready $(VENV)/.ready
	$(TEST_ENV) $(BIN)/pytest tests -m docs
	$(DOCS)/bin/python -m doctest tools/docstrings.py
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
	$(DOCS)/bin/python -m tools.links site

$(DOCS)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS)
	$(PYTHON) -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
		print(*project["optional-dependencies"]["docs"], sep="\n")' > $(DOCS)/requirements.txt
	$(DOCS)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -r $(DOCS)/requirements.txt
	touch $@

# Flower's simulation with Ray, which `make test` does not need, in an isolated network.
test-simulation: $(SIMULATION)/.ready
	$(TEST_ENV) $(SIMULATION)/bin/pytest -s tests/federation/flower/simulation.py

$(SIMULATION)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(SIMULATION)
	$(SIMULATION)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e '.[server,simulation]' pytest
	touch $@

$(VENV)/.ready: pyproject.toml lab/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' -e ./lab
	touch $@

clean:
	rm -rf $(VENV) $(SIMULATION) $(DOCS) site runs .mypy_cache .ruff_cache .pytest_cache
