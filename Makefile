# make demo     set up, and take a tour: train, score, sample, compress, look; about a minute
# make test     set up and check everything: lint, types, doctests, tests
# make lint     the linter and the type checker alone
# make format   put the code into its usual form
# make docs     the documentation, as a web site in site/
# make bench    the benchmarks; see benchmarks/README.md
# make clean    remove what was set up

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint format docs bench clean

demo: .venv/ready
	$(BIN)/ddf demo

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup

lint: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: .venv/ready
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: .venv/ready
	$(BIN)/mkdocs build --strict

bench: .venv/ready
	$(BIN)/python benchmarks/permutation.py
	$(BIN)/python benchmarks/training_steps.py --small
	$(BIN)/python benchmarks/depth.py
	$(BIN)/python benchmarks/memory.py

clean:
	rm -rf site .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Made anew when what is to be installed changes.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,docs]"
	touch $@
