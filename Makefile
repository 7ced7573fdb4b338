# make demo   set everything up, train the embedded example under five mechanisms and one with local noise, report them
# make test   set everything up, lint, type-check and run the tests
PY := .venv/bin/python

.PHONY: setup demo test lint test-slow test-data test-flower bench results docs docs-serve picture clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	test -x $(PY) || python3 -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[train,explore,flower,docs,browser-tests,dev]'
	touch $@

demo: setup
	.venv/bin/mppfl train examples/demo.toml --output demo-output/run --overwrite
	.venv/bin/mppfl train examples/demo.toml --set mechanism=mppfl --set protection.trust=local --output demo-output/local --overwrite
	.venv/bin/mppfl report demo-output/run demo-output/local --output demo-output/report.html
	@echo "explore it in a browser: .venv/bin/mppfl explore --run demo-output/run"

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

test: lint
	$(PY) tools/measure.py
	$(PY) -m pytest -n 2 --dist loadfile

test-slow: setup
	$(PY) -m pytest -m slow

test-data: setup
	$(PY) -m pytest -m data -v

test-flower: setup  # real processes on loopback: some ten minutes on two cores
	$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,flower]' 'flwr[simulation]'
	$(PY) -m pytest -m flower -v tests/flower

bench: setup
	$(PY) benchmarks/equilibrium.py
	$(PY) benchmarks/equilibrium.py --growth

results: setup
	$(PY) docs/make_results.py

docs: setup  # docs/reproduction.md and its charts from reproduction/results/*.json, docs/reference.md, and the site in site/
	$(PY) -c "from reproduction.document import make_document; make_document('reproduction/results')"
	$(PY) docs/make_reference.py
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet

docs-serve: setup  # the site on http://127.0.0.1:8000, made anew whenever a page is saved
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs serve

picture: demo  # of the README; needs chromium
	$(PY) docs/make_screenshot.py
	chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1180,1390 --screenshot=docs/images/report.png demo-output/report.html

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache demo-output site
