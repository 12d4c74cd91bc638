# What a person, and CI, does with this repository. `make` or `make help` lists it.
#
# Nothing but make and a Python 3.11 or 3.12 is needed. The packages come from the lock in requirements/, into .venv.
#   make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu     a machine without an NVIDIA GPU
#   make test ARGS="-k dpo"                                        extra words for pytest
#   make demo PYTHON=/opt/python3.12/bin/python3.12                a Python of your choice

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
WORKERS ?= 2
ARGS ?=
# An index that has the build of torch you want, besides the one pip is set up with.
TORCH_INDEX ?=
# A name on the path may be a shim that fails when run, or a Python without venv, so each is tried.
USABLE := import ensurepip, sys, venv; sys.exit(sys.version_info[:2] not in {(3, 11), (3, 12)})
PYTHON ?= $(firstword $(foreach name,python3.12 python3.11 python3,$(shell $(name) -c '$(USABLE)' 2>/dev/null && echo $(name))))

# Of tests and package: else every process that a test starts compiles what it imports, and each target rewrites 450 files of tests.
unexport PYTHONDONTWRITEBYTECODE

RUN := $(VENV)/bin/python -m
PIP := $(RUN) pip --disable-pip-version-check

# ---------------------------------------------------------------------------------------------------- environment

.PHONY: python
python:  ## tell which Python makes the virtual environment
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or 3.12 with venv was found. On Debian and Ubuntu: apt-get install python3 python3-venv; or name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "$(PYTHON)"

# The stamps hold the environment to the lock: touched last, so an installation that broke off is done again.
$(VENV)/.core: requirements/core.txt pyproject.toml
	@$(MAKE) --no-print-directory python >/dev/null
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c requirements/core.txt torch $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
	$(PIP) install -r requirements/core.txt
	$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.core
	$(PIP) install -r requirements/dev.txt
	@touch $@

# -------------------------------------------------------------------------------------------------------- running

.PHONY: demo
demo: $(VENV)/.core  ## SFT, reward model, PPO and evaluation of a tiny model, then a report: three to four minutes
	$(VENV)/bin/rlhf run recipes/quickstart.yaml $(ARGS)

.PHONY: test
test: $(VENV)/.dev  ## the test suite, but for what is slow (make test ARGS="-k dpo")
	$(RUN) pytest -n $(WORKERS) --dist loadfile -m "not slow" $(ARGS)

.PHONY: test-slow
test-slow: $(VENV)/.dev  ## the rest of it: whole runs, killed, resumed or repeated
	$(RUN) pytest -n $(WORKERS) --dist load -m slow $(ARGS)

# An x86 processor as it was in 2013, to torch, to oneDNN and to the compiler of our C: other kernels, which round elsewhere.
LOWERED := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 CC="$${CC:-cc} -march=x86-64-v3"

.PHONY: test-lowered
test-lowered: $(VENV)/.dev  ## the numeric tests once more, with the processor's features lowered to AVX2 (x86 only)
	@if [[ $$(uname -m) == x86_64 ]]; then \
		$(LOWERED) $(RUN) pytest -n $(WORKERS) --dist load -m "numeric and not slow" $(ARGS); \
	else echo "Nothing to lower: this processor is a $$(uname -m)."; fi

.PHONY: lint
lint: $(VENV)/.dev  ## formatting and ruff's rules, changing nothing
	$(RUN) ruff format --check .
	$(RUN) ruff check .

.PHONY: format
format: $(VENV)/.dev  ## format, and fix what ruff can fix
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

.PHONY: types
types: $(VENV)/.dev  ## mypy: src strictly, tools and benchmarks for names and calls
	$(RUN) mypy

.PHONY: check
check: lint types test test-lowered test-slow  ## what CI runs
	@echo "$$(git ls-files -z 'src/*.py' | xargs -0 cat | wc -l) lines of source"

.PHONY: docs
docs: $(VENV)/.dev  ## links, commands and code blocks of every page
	$(RUN) pytest tests/docs $(ARGS)

.PHONY: bench
bench: $(VENV)/.core  ## each row of work here and in TRL side by side, into benchmarks/RESULTS.md (hours; make bench ARGS="--quick")
	TORCH_INDEX=$(TORCH_INDEX) $(RUN) benchmarks.peer --all --write $(ARGS)

.PHONY: bench-gpu
bench-gpu: $(VENV)/.core  ## SFT, DPO and GRPO here and in TRL with its best kernels on a GPU, into benchmarks/RESULTS-gpu.md (ARGS=--large: 1.5B too)
	TORCH_INDEX=$(TORCH_INDEX) $(RUN) benchmarks.peer.gpu $(ARGS)

.PHONY: gpu-check
gpu-check: $(VENV)/.dev  ## on a machine with a GPU: its tests, then its benchmarks, into docs/results/gpu.md (ARGS="--only tests ranks")
	$(VENV)/bin/python -m tools.gpu_check $(ARGS)

SEEDS := OMP_NUM_THREADS=1 $(VENV)/bin/python benchmarks/seeds.py --other-base runs/base-1/base/model

.PHONY: results
results: $(VENV)/.dev  ## the tables of results over fresh seeds in docs/results (about an hour on one core)
	OMP_NUM_THREADS=1 $(VENV)/bin/rlhf run recipes/base.yaml name=base-1 seed=1
	$(SEEDS) --seeds 11 12 13 14 15 --arms PPO GRPO DPO --write docs/results/seeds.md $(ARGS)
	$(SEEDS) --seeds 11 12 13 14 15 --arms "PPO hot, no KL" "PPO hot, KL" --write docs/results/reward_hacking.md $(ARGS)

.PHONY: serving-faults
serving-faults: $(VENV)/.dev  ## kill a server for models while clients ask, fill its disk, crowd it (about ten minutes)
	OMP_NUM_THREADS=1 $(VENV)/bin/python tools/serving_faults.py --write docs/results/serving_faults.md $(ARGS)

.PHONY: kills
kills: $(VENV)/.core  ## kill runs at 50 random moments and show that they end with the same bits (about twenty minutes)
	$(VENV)/bin/python tools/kill_proof.py --write docs/results/kills.md $(ARGS)

.PHONY: annotation-load
annotation-load: $(VENV)/.dev  ## 50 annotators judge while their server is killed 5 times, and nothing is lost (some minutes)
	OMP_NUM_THREADS=1 $(VENV)/bin/python tools/annotation_load.py --write docs/results/annotation_load.md $(ARGS)

.PHONY: fuzz
fuzz: $(VENV)/.dev  ## feed 10,000 damaged data files, recipes and checkpoints to the readers
	$(VENV)/bin/python tools/fuzz.py --count 10000 --write docs/results/fuzz.md $(ARGS)

.PHONY: base
base: $(VENV)/.core  ## train the embedded base model again and compare it with the shipped one (about ten minutes)
	$(VENV)/bin/rlhf run recipes/base.yaml
	$(VENV)/bin/python tools/ship_base.py

# -------------------------------------------------------------------------------------------------------- keeping

.PHONY: lock
lock:  ## resolve pyproject.toml again into requirements/core.txt and dev.txt, on the oldest Python
	requirements/lock.sh

.PHONY: clean
clean:  ## caches and builds; leaves .venv and runs/ alone
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help
help:  ## this list
	@awk -F ':.*  ## ' '/^[a-z-]+:.*  ## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
