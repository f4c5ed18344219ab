# make demo | make test | make test-all | make docs | make ffcv | make lint | make lock       CUDA=12 (default) or CUDA=13
# Without a network: make bundle [CONFIG=my.yaml] where there is one, then make setup OFFLINE=FOLDER
CUDA ?= 12
ifeq ($(filter 12 13,$(CUDA)),)
$(error found CUDA=$(CUDA); expected 12 or 13: make CUDA=12)
endif
PYTHON ?= python3
# without byte code each process that imports torch compiles it again, which takes seconds
unexport PYTHONDONTWRITEBYTECODE
UV_VERSION := 0.13.8
ZENSICAL_VERSION := 0.0.73
VENV := .venv
BIN := $(VENV)/bin
PYTEST := MAKEFLAGS= $(BIN)/python -m pytest
# two processes, each with whole files of tests, those that take longest first
SIDE_BY_SIDE := -n 2 --dist loadfile --no-loadscope-reorder
STAMP := $(VENV)/.installed-cuda$(CUDA)
BASE := $(VENV)/.installed-base
# has no CUDA, and the version that the constraints ask for
CPU_TORCH := $(VENV)/lib/python*/site-packages/torch-*+cpu.dist-info
CONSTRAINTS := envs/constraints-cuda$(CUDA).txt
LOCK = $(BIN)/uv pip compile -q --universal --python-version 3.11 --no-header --no-annotate --no-emit-index-url \
       --no-emit-find-links --extra all --extra dev pyproject.toml

# a node without a network installs what make bundle packed
BUNDLE ?= bundle-cuda$(CUDA)
CONFIG ?=
ifdef OFFLINE
FROM_FOLDER := --no-index --find-links $(OFFLINE)/wheels
UV_OFFLINE := --offline
endif

# which Python, and what to do where it is too old
new_enough = $(1) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "found Python %d.%d; expected 3.11 or newer; $(2)" % sys.version_info[:2])'

define MAKE_VENV
@$(call new_enough,$(PYTHON),name one with make PYTHON=python3.12)
@test ! -e $(BIN)/python || $(call new_enough,$(BIN)/python,it is that of $(VENV): move it away and run make again)
$(if $(OFFLINE),$(PYTHON) -m gpufeed.cluster.bundle.contents $(OFFLINE) $(CUDA))
@$(PYTHON) -m venv $(VENV) || { echo "no virtual environment: on Debian and Ubuntu install python3-venv, then run make again"; exit 1; }
$(BIN)/python -m pip install --quiet --disable-pip-version-check $(FROM_FOLDER) uv==$(UV_VERSION)
endef

.PHONY: setup ffcv demo test test-all test-waiting test-others test-alone docs lint lock bundle clean

setup: $(STAMP)

$(STAMP): pyproject.toml $(CONSTRAINTS)
	$(MAKE_VENV)
	@rm -f $(VENV)/.installed-*
	$(if $(wildcard $(CPU_TORCH)),$(BIN)/uv pip uninstall --quiet --python $(BIN)/python torch torchvision)
	$(BIN)/uv pip install --quiet $(UV_OFFLINE) $(FROM_FOLDER) --python $(BIN)/python --constraint $(CONSTRAINTS) --editable '.[cuda$(CUDA),all,dev]'
	@touch $@

# what the demo needs without a GPU
$(BASE): pyproject.toml $(CONSTRAINTS)
	$(MAKE_VENV)
	@$(BIN)/python -m gpufeed.cluster.base_install $(CONSTRAINTS)
	@touch $@

# needs headers of the system: docs/reference/ffcv.md
ffcv: setup
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps ffcv==1.0.2

# asked for the demo alone: a GPU, a bundle or an earlier make setup has it install all
DEMO_NEEDS = $(if $(OFFLINE)$(wildcard $(VENV)/.installed-cuda*)$(shell nvidia-smi -L 2>/dev/null | grep '^GPU'),setup,$(BASE))
.SECONDEXPANSION:
demo: $$(DEMO_NEEDS)
	$(BIN)/snakemake --configfile config/demo.yaml

test: setup
	$(PYTEST) $(SIDE_BY_SIDE) -m "not slow and not alone and not system and not slurm and not cuda"
	@$(BIN)/python tests/cuda/ledger.py stale

# every test: those of Slurm and of a bare Debian mostly wait, for timers, disks and mirrors, so they run beside the
# others; the last ones want the machine for themselves
test-all: setup lint
	$(MAKE) --no-print-directory -j 2 test-waiting test-others
	$(MAKE) --no-print-directory test-alone

BARE_DEBIAN := tests/system/test_bare_debian.py

# the Debian first: it links uv's cache, into which later tests of the others write
test-waiting:
	$(PYTEST) -o cache_dir=.pytest_cache/waiting $(BARE_DEBIAN) tests/workflow -m "slurm or system"

test-others:
	$(PYTEST) $(SIDE_BY_SIDE) -m "not alone and not slurm" --ignore $(BARE_DEBIAN)

test-alone:
	$(PYTEST) -m alone
	@$(BIN)/python tests/cuda/ledger.py stale

# README and docs as a site, build/site/index.html; a link that leads nowhere is an error
docs: | $(BIN)/uv
	rm -rf build/docs build/site && mkdir -p build/docs
	git ls-files -- '*.md' 'config/*.yaml' 'examples/*' 'results/reference/*.svg' 'results/reference/*.html' results/reference/headline.json | tar -cf - -T - | tar -xf - -C build/docs
	$(BIN)/uv tool run zensical@$(ZENSICAL_VERSION) build --strict

lint: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/snakefmt --check Snakefile rules workflow/Snakefile && $(BIN)/snakemake --lint

lock: | $(BIN)/uv
	$(LOCK) --extra cuda12 -o envs/constraints-cuda12.txt
	$(LOCK) --extra cuda13 -o envs/constraints-cuda13.txt
	{ echo '# Written by make lock: every package of the CUDA 12 stack, for --sdm conda.'; \
	  printf 'name: gpufeed\nchannels: [conda-forge]\ndependencies:\n  - python=3.12\n  - ffmpeg=7\n  - pip\n  - pip:\n'; \
	  $(BIN)/uv pip compile -q --python-version 3.12 --python-platform x86_64-manylinux_2_28 --no-header --no-annotate \
	    --no-emit-index-url --no-emit-find-links --constraint envs/constraints-cuda12.txt --extra cuda12 --extra all pyproject.toml \
	    | sed 's/^/      - /'; } > envs/gpufeed.yaml

bundle: | $(BIN)/uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint $(CONSTRAINTS) jsonschema packaging pyyaml requests tqdm
	$(BIN)/python -m gpufeed.cluster.bundle $(BUNDLE) --cuda $(CUDA) $(CONFIG:%=--configfile %)

$(BIN)/uv:
	$(MAKE_VENV)

clean:
	rm -rf $(VENV) .snakemake results/demo
