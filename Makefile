# SPDX-License-Identifier: Apache-2.0
# The front: `make help` lists the targets. Everything is written into the tree: build/, .venv*/,
# .cache/, out/.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
JOBS ?= $(shell nproc)
VENV ?= .venv
VENV_OLDEST ?= .venv-oldest
VENV_WHEEL ?= .venv-wheel
WHEEL_MACHINES ?= x86_64 aarch64
# Come last, so that they win: PYTEST_ARGS='-n0 -k lanes'
PYTEST_ARGS ?=
# Random programs other than the suite's: ANABRANCH_FIRST_SEED=5000 PYTEST_ARGS='-k random_streams'
# The Python of the GPU's tests and benchmarks: the environment's, or any that has torch for this
# machine's GPU, and pytest: make test-gpu GPU_PYTHON=python3
GPU_PYTHON ?= $(VENV)/bin/python
GPU_READY = $(if $(filter $(VENV)/bin/python,$(GPU_PYTHON)),$(VENV)/ready)

ROOT := $(CURDIR)
REPORTS := $(ROOT)/build/reports
SOURCES = $(shell find bench bridge examples include src tests tool \
            \( -name '*.h' -o -name '*.cpp' \) ! -name '*_generated.h')
# ThreadSanitizer of these compilers gives up on kernels that scatter memory too widely.
STILL := $(shell setarch $$(uname -m) -R true 2>/dev/null && echo setarch $$(uname -m) -R)
# Everything a test writes stays here. Bytecode too, whatever the environment says: without it each
# process that imports torch would compile two thousand files.
SCRATCH := TMPDIR=$(ROOT)/.cache/tmp PYTHONPYCACHEPREFIX=$(ROOT)/.cache/pycache \
           PYTHONDONTWRITEBYTECODE=
# Processes take a gigabyte each: eight at most. Each keeps neighbouring tests, which compile much the
# same, until another one has none left.
SPREAD = -n $(shell echo $$(($(JOBS) < 8 ? $(JOBS) : 8))) --dist worksteal
DEV_LIBRARY := $(ROOT)/build/dev/bridge/libanabranch_bridge.so

export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export CTEST_PARALLEL_LEVEL := $(JOBS)
ifneq ($(shell command -v ninja),)
export CMAKE_GENERATOR := Ninja
endif

.PHONY: help demo test test-cpp test-python test-clients test-page test-oldest test-long test-wheel test-gpu \
        wheel sdist docs check lint bench bench-gpu asan tsan fuzz format build release clean packages-build \
        packages-test \
        packages-python

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/ready release ## train a small transformer under eager, torch.compile and Anabranch
	mkdir -p out
	$(VENV)/bin/python examples/demo/train.py

# The environment is mostly a download: it comes while the C++ builds. Packages come one by one.
test: packages-build packages-test packages-python ## everything that must hold before a change lands
	@$(MAKE) -j2 build $(VENV)/ready
	$(run_cpp_tests)
	$(run_python_tests)
	@python3 scripts/count_tests.py $(REPORTS)/dev.xml $(REPORTS)/python.xml

check: build lint ## format, types, rooms and quick tests: about a minute once built
	scripts/need_packages.sh format
	clang-format --dry-run -Werror $(SOURCES)
	$(call run_ctest,check,dev,-L 'unit|source')
	$(call run_pytest,quick,$(VENV)/bin/python,$(SPREAD) -m quick)

lint: $(VENV)/lint ## ruff and mypy over the Python code
	$(VENV)/bin/ruff check --quiet
	$(VENV)/bin/mypy --cache-dir=.cache/mypy

build: packages-build packages-test ## the C++ of the dev preset, with the header check
	$(call build_preset,dev)
	cmake --build build/dev --target all_verify_interface_header_sets

test-cpp: build ## the C++ tests, the installed consumer, must-not-compile, rooms, pages
	$(run_cpp_tests)

test-python: $(VENV)/ready build ## the Python tests on the newest torch
	$(run_python_tests)

test-clients: $(VENV)/clients build ## what is recorded of other people's trainers, which come for it
	$(call run_pytest,clients,$(VENV)/bin/python,$(SPREAD) $(CLIENTS))

test-page: $(VENV)/ready build ## the pages of reports in a browser, which comes for it
	scripts/need_packages.sh page
	$(call run_pytest,page,$(VENV)/bin/python,$(SPREAD) tests/python/front/test_page.py)

test-oldest: $(VENV_OLDEST)/ready build ## the smaller set of Python tests on the oldest torch
	$(call run_pytest,oldest,$(VENV_OLDEST)/bin/python,$(SPREAD) -m oldest)

test-long: $(VENV)/ready build ## hours: 10,000 random programs in C++, 1,000 of each kind in Python
	ctest --preset long
	$(call run_pytest,long,$(VENV)/bin/python,$(SPREAD) -k random_streams,ANABRANCH_SEEDS=1000)

test-wheel: $(VENV)/ready packages-build ## build the wheel, install it elsewhere, use it from both sides
	$(SCRATCH) $(VENV)/bin/python tests/install/test_wheel.py

wheel: $(VENV)/ready $(VENV_WHEEL)/ready packages-build ## wheels for other systems, into dist/
	rm -rf dist/*.whl
	for machine in $(WHEEL_MACHINES); do scripts/build_wheel.sh $(VENV_WHEEL)/bin/python $$machine; done
	$(SCRATCH) $(VENV)/bin/python tests/install/test_manylinux.py dist/*.whl

sdist: $(VENV_WHEEL)/ready ## the sources that pip builds from, into dist/
	$(VENV_WHEEL)/bin/python -c 'from scikit_build_core.build import build_sdist; build_sdist("dist")'

docs: $(VENV)/docs build ## the pages as a site, in build/site
	$(SCRATCH) ANABRANCH_LIBRARY_PATH=$(DEV_LIBRARY) $(VENV)/bin/python -m sphinx -W --keep-going \
	  --quiet -c docs/site docs build/site

bench: $(VENV)/ready release ## every measurement, into bench/results/
	for program in $$(find build/release/src -name '*_bench' -type f | sort); do \
	  $$program --benchmark_out=bench/results/$$(basename $$program).json \
	    --benchmark_out_format=json; \
	done
	$(VENV)/bin/python bench/call_overhead.py bench/results/call_overhead.json
	$(VENV)/bin/python bench/run.py
	$(VENV)/bin/python bench/page.py

test-gpu bench-gpu: export PYTHONPATH := $(ROOT)/python

test-gpu: $(GPU_READY) build ## what needs a GPU: the driver, the C++ examples, recordings of torch
	ctest --preset dev -L gpu
	$(call run_pytest,gpu,$(GPU_PYTHON),tests/gpu/python)

bench-gpu: $(GPU_READY) release ## the benchmarks that need a GPU, into bench/results/
	for program in $$(find build/release/bench/gpu -name '*_bench' -type f | sort); do \
	  $$program bench/results/$$(basename $$program).json; \
	done
	$(GPU_PYTHON) bench/gpu/steps.py bench/results/gpu_steps.json
	$(GPU_PYTHON) bench/gpu/memory.py bench/results/gpu_memory.json
	$(GPU_PYTHON) bench/gpu/loops.py bench/results/gpu_loops.json
	$(GPU_PYTHON) bench/gpu/trainer.py bench/results/gpu_trainer.json
	$(GPU_PYTHON) bench/gpu/clients.py bench/results/gpu_clients.json
	$(GPU_PYTHON) bench/gpu/calls.py bench/results/gpu_calls.json
	$(GPU_PYTHON) bench/gpu/repeats.py bench/results/gpu_repeats.json
	$(GPU_PYTHON) bench/gpu/branches.py bench/results/gpu_branches.json
	$(GPU_PYTHON) bench/gpu/microbatches.py bench/results/gpu_microbatches.json
	$(GPU_PYTHON) bench/gpu/copies.py bench/results/gpu_copies.json
	$(GPU_PYTHON) bench/gpu/offload.py bench/results/gpu_offload.json
	$(GPU_PYTHON) bench/gpu/optimizer.py bench/results/gpu_optimizer.json
	$(GPU_PYTHON) bench/gpu/streams.py bench/results/gpu_streams.json
	$(GPU_PYTHON) bench/gpu/timing.py bench/results/gpu_timing.json
	$(GPU_PYTHON) bench/gpu/ddp.py bench/results/gpu_ddp.json
	$(GPU_PYTHON) bench/gpu/fsdp.py bench/results/gpu_fsdp.json
	$(GPU_PYTHON) bench/gpu/fsdp_limits.py bench/results/gpu_fsdp_limits.json
	$(GPU_PYTHON) bench/gpu/collectives.py bench/results/gpu_collectives.json

asan: packages-build packages-test ## the C++ tests under Address-, Leak- and UndefinedBehaviorSanitizer
	scripts/need_packages.sh clang
	$(call build_preset,asan)
	$(call run_ctest,asan,asan,)

tsan: packages-build packages-test ## those of rooms in which threads meet, under ThreadSanitizer
	$(call build_preset,tsan)
	$(call run_ctest,tsan,tsan,,$(STILL))

fuzz: packages-build packages-test ## feed the reader of plan files for half a minute
	scripts/need_packages.sh clang
	$(call build_preset,asan,--target plan_file_fuzz)
	mkdir -p build/asan/corpus
	build/asan/src/plan/plan_file_fuzz -max_len=4096 -max_total_time=30 -verbosity=0 \
	  build/asan/corpus src/plan/plan_file_corpus

format: ## clang-format over all C++
	scripts/need_packages.sh format
	clang-format -i $(SOURCES)

release: packages-build ## the libraries and the command for use; Python finds them
	$(call build_preset,release)

clean: ## all that was built; the environments stay
	rm -rf build out .cache

packages-build:
	@scripts/need_packages.sh build
packages-test:
	@scripts/need_packages.sh test
packages-python:
	@PYTHON=$(PYTHON) scripts/need_packages.sh python

# The package is installed as a pointer to this tree: its Python files as they stand, and the library
# of `make release` or, in tests, the one of the dev preset.
$(VENV)/ready: requirements/newest.txt
$(VENV_OLDEST)/ready: requirements/oldest.txt
%/ready: pyproject.toml | packages-python
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), sys.version'
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
	  -r $(filter requirements/%,$^)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation \
	  --no-deps --config-settings wheel.cmake=false -e .
	touch $@

$(VENV_WHEEL)/ready: requirements/wheel.txt | packages-python
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

$(VENV)/clients: requirements/clients.txt | $(VENV)/ready
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

$(VENV)/docs: requirements/docs.txt | $(VENV)/ready
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

$(VENV)/lint: requirements/check.txt | $(VENV)/ready
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

# $(call build_preset,<preset>,<arguments>)
define build_preset
	mkdir -p .cache
	cmake --preset $(1) > .cache/configure.log || { cat .cache/configure.log; exit 1; }
	cmake --build --preset $(1) $(2)
endef

# $(call run_ctest,<report>,<preset>,<arguments>,<prefix>)
define run_ctest
	mkdir -p $(REPORTS) .cache/tmp
	$(SCRATCH) $(4) ctest --preset $(2) $(3) --output-junit $(REPORTS)/$(1).xml
endef

# $(call run_pytest,<report>,<python>,<arguments>,<variables>)
define run_pytest
	mkdir -p $(REPORTS) .cache/tmp
	$(4) $(SCRATCH) ANABRANCH_LIBRARY_PATH=$(DEV_LIBRARY) $(2) -m pytest $(3) \
	  --junitxml=$(REPORTS)/$(1).xml $(PYTEST_ARGS)
endef

run_cpp_tests = $(call run_ctest,dev,dev,)
CLIENTS := tests/python/integrations
run_python_tests = $(call run_pytest,python,$(VENV)/bin/python,$(SPREAD) --ignore=$(CLIENTS))
