# make demo     install into .venv, then take a tour of about a minute: train, score, sample, compress
# make test     install into .venv, then run the linter, the type checker and all tests
# make lint     run only the linter and the type checker
# make format   format the code
# make docs     build the documentation, as a website in site/
# make bench    run the benchmarks; see benchmarks/README.md
# make dist     build the source distribution and the wheel, and check them
# make clean    delete everything that the others created

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint format docs bench dist clean

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

dist: .venv/ready
	rm -rf dist
	$(BIN)/python -m pip install --quiet build twine
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

clean:
	rm -rf site dist demo .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Recreated when the dependencies change.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[train,plot,remote,zarr,dask,dev,docs]"
	touch $@
