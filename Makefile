# make demo   set everything up and solve the embedded example
# make test   set everything up, lint, type-check and run the tests
PY := .venv/bin/python

.PHONY: setup demo test lint test-slow test-data bench results clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	test -x $(PY) || python3 -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: setup
	.venv/bin/mppfl compare --preset paper-like --num-clients 20 --rounds 60 --seeds 5 --fixed-budget mean --figure demo-output/compare.png
	.venv/bin/mppfl risk --preset paper-like --num-clients 20

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

test: lint
	$(PY) -m pytest -n 2

test-slow: setup
	$(PY) -m pytest -m slow

test-data: setup
	$(PY) -m pytest -m data -v

bench: setup
	$(PY) benchmarks/equilibrium.py
	$(PY) benchmarks/equilibrium.py --growth

results: setup
	$(PY) docs/make_results.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache demo-output
