# Two commands do everything on a fresh machine: make demo, make test. Each sets up what it needs.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo check test test-gpu bench audit mutants up run-up down clean

demo: $(READY)
	$(BIN)/hdpfl demo

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow and not engines and not gpu"

test: check
	$(BIN)/pytest -n 2 --dist worksteal -m "slow and not engines and not gpu"
	$(BIN)/pytest -n 2 --dist loadfile -m "engines and not deadline"
	$(BIN)/pytest -m "deadline"

test-gpu: $(READY)
	$(BIN)/pytest -m gpu

bench: $(READY)
	$(BIN)/python -m benchmarks

audit: $(READY)
	$(BIN)/hdpfl-site audit

mutants: $(READY)
	$(BIN)/python -m tests.mutants

up: $(READY)
	$(BIN)/python deploy/federation.py up $(if $(SITES),--sites $(SITES))

run-up: $(READY)
	$(BIN)/python deploy/federation.py run $(TERMS)

down: $(READY)
	$(BIN)/python deploy/federation.py down

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else \
	  "error: Python %d.%d; this needs 3.11, 3.12 or 3.13: make PYTHON=python3.12 ..." % v)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[ray,dev]'
	touch $(READY)

clean:
	rm -rf .venv build .mypy_cache .ruff_cache .hypothesis *.egg-info
