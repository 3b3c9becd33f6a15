# Builds, tests and packs qwen3-8b. `make help` lists the targets. Needs python3 (3.11+, with venv), g++ and make; all else
# comes pinned from PyPI into .venv. Each stage keeps to its own folder under build/, and an incremental run takes seconds.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build
MAKEFLAGS += --no-print-directory

VENV := .venv
PYTHON_BIN := $(VENV)/bin/python
CMAKE := $(VENV)/bin/cmake
# Two at once by default: the smallest machine that this project promises to build on has two cores.
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -gt 16 ] && n=16; echo $$n)
NODE_CLIENTS := .node-clients
FUZZ_SECONDS ?= 10

export PYTHONDONTWRITEBYTECODE := 1

# CMake finds nlohmann-json through the environment's Python and ninja beside its own binary.
CONFIGURE = $(CMAKE) -S native -G Ninja "-DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(VENV)/bin/ninja" \
  "-DPython3_EXECUTABLE=$(CURDIR)/$(PYTHON_BIN)"

# `make dist` packs the library with the CUDA backend, for all architectures of the product. For development `make` builds
# without it, and `make CUDA=1` with it; CUDA_ARCHITECTURES=90a-real (one) halves the two minutes that it takes on two cores.
# nvcc is the one on the PATH, else the pinned one from PyPI.
CUDA ?= 0
CUDA_ARCHITECTURES ?= 80-real;86-real;89-real;90a-real;120-real;80-virtual
CUDA_WHEELS = $(CURDIR)/$(wildcard $(VENV)/lib/python3*/site-packages/nvidia/cu13)
CUDA_COMPILER = $(if $(shell command -v nvcc),,"-DCMAKE_CUDA_COMPILER=$(CUDA_WHEELS)/bin/nvcc" "-DCMAKE_CUDA_FLAGS=-L$(CUDA_WHEELS)/lib")
CONFIGURE_CUDA = $(CONFIGURE) -DQWEN3_CUDA=ON $(CUDA_COMPILER)

# Ninja has something to say even where nothing has changed since the library was built.
QUIET_IF_BUILT = $$([ -n "$$(find native/src native/include native/CMakeLists.txt build/native/build.ninja \
  -newer build/native/libqwen3.so -print -quit 2>&1)" ] || echo -- --quiet)

## ---- build

.PHONY: build
build: $(VENV)/.stamp-build build/native/build.ninja ## the library build/native/libqwen3.so and the command .venv/bin/qwen3-8b
	@$(CMAKE) --build build/native --parallel $(JOBS) --target qwen3 $(QUIET_IF_BUILT)

.PHONY: demo
demo: build ## build, and open a chat on the small model that comes with the program (without a terminal: one answer)
	@echo "qwen3-demo is a toy of 6 million parameters; what it can do:" >&2
	@echo "qwen3app/qwen3-demo/README.md" >&2
	@if [ -t 0 ] && [ -t 1 ]; then \
	  echo "Ask it: What is 57 + 38?" >&2; \
	  echo "For a tool call: /tools docs/example_tools.py, then: What time is it in Tokyo?" >&2; \
	  echo "After other questions it is not sure of its tools: /reset before each such one." >&2; \
	  $(VENV)/bin/qwen3-8b chat --model qwen3-demo; \
	else $(VENV)/bin/qwen3-8b chat --model qwen3-demo --once "Hello" </dev/null; fi

.PHONY: demo-eval
demo-eval: build $(VENV)/.stamp-evaluation ## held-out questions to the demo model, on the CPU; exit code 1 below its card's bars
	@$(PYTHON_BIN) build_tools/evaluate_demo.py

.PHONY: dist
dist: $(VENV)/.stamp-build $(VENV)/.stamp-cuda ## one file dist/qwen3-8b, and libqwen3.so, qwen3.h, qwen3.pc for other hosts
	@[ -f build/dist/build.ninja ] || $(CONFIGURE_CUDA) "-DCMAKE_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURES)" -B build/dist >/dev/null
	@$(CMAKE) --build build/dist --parallel $(JOBS) --target qwen3
	@$(PYTHON_BIN) build_tools/pack.py --library build/dist/libqwen3.so --out dist

## ---- tests

# The order is from cheap to dear, so that a mistake shows early. Every stage prints its own closing line of counts.
.PHONY: test
test: lint test-native test-fuzz test-abi test-cuda coverage test-e2e ## everything that CI checks
	@echo "make test: all stages passed"

.PHONY: test-native
test-native: build-coverage ## C++ unit tests (an instrumented build, so that coverage can be read)
	@find build/coverage -name '*.gcda' -delete
	@build/coverage/native_tests
	@QWEN3_TOY_ASYNC=1 build/coverage/native_tests engine
	@build/coverage/op_twins --device cpu --kernels scalar --few

.PHONY: test-fuzz
test-fuzz: build-sanitize ## the file parsers under AddressSanitizer and UBSan, FUZZ_SECONDS each
	@passed=0; failed=0; for fuzzer in build/sanitize/*_fuzz; do \
	  [ -x $$fuzzer ] || continue; \
	  if $$fuzzer --seconds $(FUZZ_SECONDS); then passed=$$((passed+1)); else failed=$$((failed+1)); echo "FAILED: $$fuzzer" >&2; fi; \
	done; echo "fuzz: $$passed passed, $$failed failed"; [ $$failed -eq 0 ]

.PHONY: test-abi
test-abi: build $(VENV)/.stamp-test ## the header as C and C++, hosts in C, Rust, Go and Node, exported symbols
	@$(PYTHON_BIN) -m pytest tests/abi

.PHONY: test-cuda
test-cuda: dist $(VENV)/.stamp-test ## the library with the CUDA backend: its exports, and that it runs without a GPU
	@$(PYTHON_BIN) build_tools/check_exports.py build/dist/libqwen3.so
	@QWEN3_LIBRARY="$(CURDIR)/build/dist/libqwen3.so" $(PYTHON_BIN) -m pytest tests/python/integration/test_cuda_library.py

.PHONY: test-python
test-python: build $(VENV)/.stamp-test ## Python unit and integration tests on the release library
	@$(PYTHON_BIN) -m pytest tests/python/unit tests/python/integration

.PHONY: coverage
coverage: test-native $(VENV)/.stamp-test ## Python unit and integration tests with line coverage of Python and host C++
	@rm -f build/.coverage* && mkdir -p build/reports
	@COVERAGE_FILE=build/.coverage QWEN3_LIBRARY="$(CURDIR)/build/coverage/libqwen3.so" \
	  $(PYTHON_BIN) -m pytest tests/python/unit tests/python/integration --cov --cov-report=
	@COVERAGE_FILE=build/.coverage $(PYTHON_BIN) build_tools/check_coverage.py --build build/coverage --reports build/reports

.PHONY: test-e2e
test-e2e: dist $(VENV)/.stamp-test ## the packed file as a person would use it
	@$(PYTHON_BIN) -m pytest tests/python/e2e

# With QWEN3_LONG property tests draw new examples, and limits of time are those that are promised: it wants an idle machine.
.PHONY: test-long
test-long: build dist build-sanitize $(VENV)/.stamp-test ## what CI has no time for: long prompts, long fuzzing, soak, new random examples
	@$(MAKE) test-fuzz FUZZ_SECONDS=600
	@QWEN3_LONG=1 $(PYTHON_BIN) -m pytest tests/python -m long --timeout 7200
	@QWEN3_LONG=1 $(PYTHON_BIN) -m pytest tests/python/unit tests/python/integration

.PHONY: test-page
test-page: build $(VENV)/.stamp-test ## the chat page in Chromium (Debian: apt install chromium); `make test` has it too
	@$(PYTHON_BIN) -m pytest tests/python/unit/server/test_server_page.py tests/python/integration/page

# Against the packed file. Clients have places of their own: they bring 1.1 GB of Python packages and 0.1 GB of npm's.
.PHONY: test-clients
test-clients: dist $(VENV)/.stamp-test $(VENV)-clients/.stamp $(NODE_CLIENTS)/.stamp ## clients from PyPI and npm, lm-evaluation-harness; ten minutes of schemathesis
	@QWEN3_CLIENTS=$(VENV)-clients QWEN3_NODE_CLIENTS="$(CURDIR)/$(NODE_CLIENTS)" QWEN3_EXECUTABLE="$(CURDIR)/dist/qwen3-8b" $(PYTHON_BIN) -m pytest tests/python -m clients

.PHONY: bench
bench: build-bench ## kernel benchmarks of this machine (native/bench)
	@for bench in build/bench/*_bench; do echo "== $$(basename $$bench)"; $$bench; done

## ---- lint

.PHONY: lint
lint: build $(VENV)/.stamp-test ## clang-format, clang-tidy, ruff, mypy, folder arrows, exported symbols
	@failed=0; check() { "$$@" || { failed=1; echo "lint: failed: $$*" | cut -c1-120 >&2; }; }; \
	check $(VENV)/bin/clang-format --dry-run -Werror $(CPP_FILES); \
	check $(VENV)/bin/ruff check --quiet .; \
	check $(VENV)/bin/ruff format --check --quiet .; \
	check $(PYTHON_BIN) -m mypy; \
	check $(PYTHON_BIN) build_tools/check_layers.py; \
	check $(PYTHON_BIN) build_tools/check_exports.py build/native/libqwen3.so; \
	check $(PYTHON_BIN) build_tools/run_clang_tidy.py --build build/native --jobs $(JOBS); \
	[ $$failed -eq 0 ] || { echo "lint: 'make format' repairs layout; the rest is above" >&2; exit 1; }; \
	echo "lint: clean"

.PHONY: format
format: $(VENV)/.stamp-test ## rewrite C++ and Python files in the project's layout
	@$(VENV)/bin/clang-format -i $(CPP_FILES)
	@$(VENV)/bin/ruff check --quiet --fix .
	@$(VENV)/bin/ruff format .

CPP_FILES = $(shell git ls-files --cached --others --exclude-standard '*.cpp' '*.h' '*.c' '*.cu' '*.cuh' | sort -u)

## ---- housekeeping

.PHONY: clean
clean: ## remove build/ and dist/; .venv stays (rm -r .venv to make it anew)
	@rm -rf build dist .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find qwen3app tests build_tools -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

## ---- stages that others hang on

# Stamps: made anew only when pyproject.toml (the pins) or the recipe changes. `make` alone needs no test packages and no
# torch; the tests do (transformers is the reference that logits are compared with).
$(VENV)/.stamp-build: pyproject.toml build_tools/make_venv.sh build_tools/requirements.py
	@build_tools/make_venv.sh $(VENV) build
	@touch $@

$(VENV)/.stamp-test: pyproject.toml build_tools/make_venv.sh build_tools/requirements.py | $(VENV)/.stamp-build
	@build_tools/make_venv.sh $(VENV) build checkpoints test reference
	@touch $@

$(VENV)/.stamp-evaluation: pyproject.toml build_tools/make_venv.sh build_tools/requirements.py | $(VENV)/.stamp-build
	@build_tools/make_venv.sh $(VENV) build evaluation
	@touch $@

$(VENV)-clients/.stamp: pyproject.toml build_tools/make_venv.sh build_tools/requirements.py
	@build_tools/make_venv.sh $(VENV)-clients clients
	@touch $@

# Without npm its clients are left out, and asked for again the next time.
$(NODE_CLIENTS)/.stamp: tests/clients/package.json
	@mkdir -p $(NODE_CLIENTS) && cp tests/clients/package.json $(NODE_CLIENTS)/
	@if command -v npm >/dev/null && command -v node >/dev/null; then \
	  echo "make: installing npm's packages into $(NODE_CLIENTS)" >&2; \
	  npm install --prefix $(NODE_CLIENTS) --no-package-lock --no-audit --no-fund --silent && touch $@; \
	else echo "make: npm is not installed, so its clients are left out (Debian, Ubuntu: apt install nodejs npm)" >&2; fi

ifeq ($(CUDA),1)
build/native/build.ninja: $(VENV)/.stamp-cuda
endif
build/native/build.ninja: native/CMakeLists.txt $(VENV)/.stamp-build build/.native-options
	@$(if $(filter 1,$(CUDA)),$(CONFIGURE_CUDA) "-DCMAKE_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURES)",$(CONFIGURE) -DQWEN3_CUDA=OFF) -B build/native >/dev/null
	@touch $@

# Changes when CUDA or CUDA_ARCHITECTURES do, and so makes the library be configured again.
build/.native-options: FORCE
	@mkdir -p build; new='CUDA=$(CUDA) $(if $(filter 1,$(CUDA)),$(CUDA_ARCHITECTURES))'; \
	[ "$$(cat $@ 2>/dev/null)" = "$$new" ] || echo "$$new" >$@

FORCE:

# nvcc from PyPI, only where there is none.
$(VENV)/.stamp-cuda: pyproject.toml build_tools/make_venv.sh build_tools/requirements.py | $(VENV)/.stamp-build
	@command -v nvcc >/dev/null || build_tools/make_venv.sh $(VENV) build cuda
	@touch $@

.PHONY: build-coverage
build-coverage: $(VENV)/.stamp-build
	@[ -f build/coverage/build.ninja ] || $(CONFIGURE) -B build/coverage -DQWEN3_TESTS=ON -DQWEN3_COVERAGE=ON >/dev/null
	@$(CMAKE) --build build/coverage --parallel $(JOBS) --target native_tests op_twins qwen3

.PHONY: build-sanitize
build-sanitize: $(VENV)/.stamp-build
	@[ -f build/sanitize/build.ninja ] || $(CONFIGURE) -B build/sanitize -DQWEN3_TESTS=ON -DQWEN3_SANITIZE=address,undefined >/dev/null
	@$(CMAKE) --build build/sanitize --parallel $(JOBS) --target fuzzers

.PHONY: build-bench
build-bench: $(VENV)/.stamp-build
	@[ -f build/bench/build.ninja ] || $(CONFIGURE) -B build/bench -DQWEN3_TESTS=ON >/dev/null
	@$(CMAKE) --build build/bench --parallel $(JOBS) --target benches
