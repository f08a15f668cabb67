# Two commands do everything on a fresh machine: make demo, make test. Each sets up what it needs.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Some machines set it; every process of the tests would then compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo lint style docs check test test-all test-flower test-pairs test-gpu test-wards test-prometheus test-docker \
  test-package bench audit mutants up run-up down demo-docker down-docker lock clean

demo: $(READY)
	$(BIN)/hdpfl demo

lint: style docs

# Imports without ruff's cache: which are our own depends on other files, too.
style: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check --no-cache .
	$(BIN)/mypy

# The documentation site, in build/site, notebooks executed (about a minute); fails on a failing cell,
# a broken link, an undescribed key, a docstring out of form.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 PYTHONWARNINGS=ignore $(BIN)/mkdocs build --strict

QUICK := not slow and not long and not engines and not gpu and not prometheus and not docker

# Without the documentation, and without the tests of half a second or more.
check: style
	$(BIN)/pytest -n 2 --dist worksteal -m "$(QUICK) and not seconds"

# The main check: without the tests of two seconds or more; one story of the engines.
test: style
	$(BIN)/pytest -n 2 --dist worksteal -m "$(QUICK)"
	$(BIN)/pytest -n 2 --dist loadfile -m story tests/e2e

# What `make test` leaves out, but for what has a target of its own.
test-all: $(READY)
	$(BIN)/pytest -n 2 --dist worksteal -m "(slow or long) and not engines and not gpu and not prometheus and not docker"
	$(BIN)/pytest -n 2 --dist loadfile -m "engines and not story and not deadline and not wards" tests/e2e
	$(BIN)/pytest -m "deadline" tests/e2e

# The engines on another Flower, installed over .venv in build/: FLWR=latest, nightly or a version.
test-flower: $(READY)
	$(BIN)/python -m tests.e2e.other_flower $(or $(FLWR),latest)

# A federation over two Flowers, either way round: the previous minor version, or FLWR='flwr-nightly'.
test-pairs: $(READY)
	$(if $(FLWR),HDPFL_OTHER_FLOWER='$(FLWR)') $(BIN)/pytest -m wards tests/e2e/test_versions.py

# Where there is CUDA; ended after 8 minutes.
test-gpu: $(READY)
	timeout 480 $(BIN)/pytest -m gpu tests/client_app/training tests/hdpfl_flower/engines tests/hdpfl_flower/privacy

# Six SuperNodes, two Flowers, sites that pin their code, PFA+, faults, kills, hosts, resume: half an hour.
test-wards: $(READY)
	$(BIN)/pytest -m wards tests/e2e

test-prometheus: $(READY)
	$(BIN)/pytest -m prometheus

# Where there is Docker, and debootstrap or HDPFL_BASE: minutes, 10 GB.
test-docker: $(READY)
	$(BIN)/pytest -m docker tests/docker

# The wheel, built, installed into an environment of its own, and its demo.
test-package: $(READY)
	$(BIN)/pytest tests/test_package.py

bench: $(READY)
	$(BIN)/python -m benchmarks

# Attacks the clipping and noise of this build, then what personal parts, scores, metrics, rounds and the doors
# for code of others (a model, a ClientApp, a training of one process, an app of any type of task) show.
audit: $(READY)
	$(BIN)/hdpfl-site audit
	$(BIN)/pytest tests/client_app/audits tests/hdpfl_tools/site/approval tests/hdpfl_tools/site/commands/test_approve.py \
	  tests/hdpfl_flower/doors/test_private_updates.py tests/hdpfl_flower/doors/test_dp_sgd.py

mutants: $(READY)
	$(BIN)/python -m tests.mutants

up: $(READY)
	$(BIN)/python deploy/federation.py up $(if $(SITES),--sites $(SITES)) $(if $(PIN),--pin)

run-up: $(READY)
	$(BIN)/python deploy/federation.py run $(TERMS)

down: $(READY)
	$(BIN)/python deploy/federation.py down

# Docker Compose, the plugin or 1.29; docker/README.md. `down-docker` keeps the volumes.
COMPOSE = $(shell docker compose version >/dev/null 2>&1 && echo docker compose || \
  echo docker-compose) -f docker/compose.yml

demo-docker:
	$(COMPOSE) build
	$(COMPOSE) up -d
	$(COMPOSE) run --rm run
	$(COMPOSE) run --rm run python /srv/hdpfl/src/deploy/containers.py run /srv/hdpfl/src/deploy/demo/shared.toml
	@echo 'dashboards: http://127.0.0.1:3000 (coordinator), :3001 to :3004 (sites)'

down-docker:
	$(COMPOSE) down

# By uv, which Flower brings. Versions stay but for what pyproject.toml asks; UPGRADE=1 renews all of
# them, monthly, and UPGRADE='certifi urllib3' those two.
# requirements-site.lock: what a site needs that trains on CSV and has an exporter; docker/tools.lock:
# what builds the images and stays out of them.
COMPILE = $(or $(wildcard $(BIN)/uv),uv) pip compile --universal \
  --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-find-links --quiet

lock:
	$(COMPILE) pyproject.toml --extra dev --extra tensorboard --extra mlflow \
	  $(if $(filter 1,$(UPGRADE)),--upgrade,$(UPGRADE:%=--upgrade-package %)) --output-file requirements.lock
	sed -n 's/^\([A-Za-z0-9._-]*==[^ ;\\]*\).*/\1/p' requirements.lock > constraints.txt
	$(COMPILE) pyproject.toml --extra metrics --constraint constraints.txt --output-file requirements-site.lock
	$(COMPILE) docker/tools.in --output-file docker/tools.lock

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else \
	  "error: Python %d.%d; this needs 3.11, 3.12 or 3.13: make PYTHON=python3.12 ..." % v)'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf .venv build .mypy_cache .ruff_cache .hypothesis *.egg-info
