# Two commands do everything on a fresh machine with Python >= 3.11, pip and make:
#   make tune [ARGS="--workload allreduce --trials 20"]     set up .venv and run the main job
#   make test                                               set up .venv and run all checks
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?= --workload resnet
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# A strict editable install does not see new or removed files, so the install depends on the list of files.
LIST := $(VENV)/files.txt
SOURCES := $(shell find tuner workloads search_spaces -type f ! -name '*.pyc' 2>/dev/null | LC_ALL=C sort)

.PHONY: tune test lint unit simulation launch packaging browser setup clean help FORCE
.DEFAULT_GOAL := help

help:
	@echo 'make tune [ARGS="--workload allreduce --trials 20"]   run the main job'
	@echo 'make test                                             run every check'
	@echo 'make lint | unit | simulation | launch | packaging | browser    run a part of them'
	@echo 'make clean                                            remove .venv and caches'

tune: $(VENV)/installed
	@$(BIN)/nccltune $(ARGS)

test: lint unit simulation launch packaging browser

lint: $(VENV)/developing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(VENV)/developing
	$(BIN)/pytest -q -n 2 -m "not launch and not packaging and not gpu and not simulation and not browser"

simulation: $(VENV)/developing
	$(BIN)/pytest -q -n 2 -m simulation

# Launches share two cores with their own workers: one at a time, or their times and limits mean nothing.
launch: $(VENV)/developing
	$(BIN)/pytest -q -m launch

packaging: $(VENV)/developing
	$(BIN)/pytest -q -m packaging

# Needs a Chromium on PATH (Debian: apt-get install chromium); says so and skips without.
browser: $(VENV)/developing
	$(BIN)/pytest -q -m browser

setup: $(VENV)/installed

# Where a torch can already be imported (a training image), it is used, because it is its NCCL that is to be tuned.
# The path file is for images whose Python is itself in a venv: --system-site-packages looks past that venv.
$(VENV)/dependencies: pyproject.toml constraints.txt
	@if $(PYTHON) -c 'import sys, torch; sys.exit(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6))' 2>/dev/null; then \
	  echo "set up $(VENV) with the torch of $(PYTHON)"; \
	  $(PYTHON) -m venv --system-site-packages $(VENV) && grep -v '^torch==' constraints.txt > $(VENV)/constraints.txt && \
	  $(PYTHON) -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])' \
	    > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/image.pth"; \
	else \
	  echo "set up $(VENV) with $$(grep '^torch==' constraints.txt), which takes some minutes"; \
	  $(PYTHON) -m venv $(VENV) && cp constraints.txt $(VENV)/constraints.txt; \
	fi
	@$(PIP) install --constraint $(VENV)/constraints.txt setuptools
	@$(BIN)/python -c 'import tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]))' > $(VENV)/needs.txt
	@$(PIP) install --constraint $(VENV)/constraints.txt --requirement $(VENV)/needs.txt
	@touch $@

$(LIST): FORCE
	@mkdir -p $(VENV)
	@printf '%s\n' $(SOURCES) | cmp -s - $@ || printf '%s\n' $(SOURCES) > $@

$(VENV)/installed: $(VENV)/dependencies $(LIST)
	@rm -rf build/__editable__*
	@$(PIP) install --no-deps --no-build-isolation --editable . --config-settings editable_mode=strict
	@touch $@

$(VENV)/developing: $(VENV)/installed
	@$(BIN)/python -c 'import tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["dev"]))' > $(VENV)/needs-dev.txt
	@$(PIP) install --constraint $(VENV)/constraints.txt --requirement $(VENV)/needs-dev.txt
	@touch $@

# build/ holds the links of the strict editable install: it goes together with the venv or not at all.
clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
