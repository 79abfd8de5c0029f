# Every target sets itself up: .venv is made, and made anew in what the project's files ask for,
# whenever one of them changes. `make demo` and `make test` are all a newcomer needs.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test coverage lint format doc bench bench-quick release-figures check dist clean
.NOTPARALLEL:

demo: $(VENV)/plot.stamp
	$(BIN)/python examples/demo.py

test: $(VENV)/test.stamp
	$(BIN)/python -m pytest

coverage: $(VENV)/test.stamp
	$(BIN)/python -m coverage run -m pytest --numprocesses=0
	$(BIN)/python -m coverage report

lint: $(VENV)/test.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/test.stamp
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

doc: $(VENV)/doc.stamp
	$(BIN)/python -m sphinx --fail-on-warning --keep-going -b html doc doc/_build/html

bench: $(VENV)/bench.stamp
	$(BIN)/python -m benchmarks

bench-quick: $(VENV)/bench.stamp
	$(BIN)/python -m benchmarks --quick

# The figures of the documentation, at one code. Continues where it stopped.
release-figures: $(VENV)/bench.stamp
	$(BIN)/python -m benchmarks.release

# Exactly what CI runs.
check:
	.ci/run

# The source distribution, and the wheel that is made from it. The wheel is installed without extras
# and tried elsewhere.
dist:
	rm -rf build dist $(VENV)/dist
	$(PYTHON) -m venv $(VENV)/dist
	$(VENV)/dist/bin/python -m pip install --quiet build
	$(VENV)/dist/bin/python -m build
	$(VENV)/dist/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	cd $(VENV)/dist && bin/python -I $(CURDIR)/tests/smoke.py

clean:
	rm -rf $(VENV) *.egg-info build dist doc/_build doc/auto_examples doc/generated
	rm -rf .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache

# One stamp for each extra of setup.cfg.
$(VENV)/%.stamp: setup.cfg pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[$*]"
	touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
