# The two commands: `make demo` shows Quire at work, `make check` proves it. Both set up what is
# missing first (tools/setup.sh) and start from a clean clone.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo demo-chat check check-all check-rest check-gpu bench-gpu build build-gpu benches clean docs format tidy asan tsan fuzz

# ALL=1: `make check-all` runs everything that otherwise rotates from commit to commit.
ALL ?=
DEMO_CONTEXT := build/demo/context.jsonl
DEMO_QUESTIONS := build/demo/questions.jsonl

help:
	@echo 'make demo       a long context, several questions: what is reused, what it saves'
	@echo 'make demo-chat  talk with a real small model over a shared document'
	@echo 'make check      set up, build, run every test; closes with one line'
	@echo 'make check-all  that, and sanitizers, fuzzers, clang-tidy, CUDA, the wheel (ALL=1: at full length)'
	@echo 'make check-gpu  the tests that need a GPU, on this machine'
	@echo 'make bench-gpu  what the GPU kernels take, beside the floors of the same run'
	@echo 'make build      the library and the programs, for use (build/release)'
	@echo 'make benches    the benchmarks (build/release/bench)'
	@echo 'make docs       the documentation site (build/site/index.html)'
	@echo 'make asan       the tests under address and undefined-behaviour sanitizers'
	@echo 'make tsan       the tests of threads under the thread sanitizer'
	@echo 'make fuzz       10 seconds of each fuzzer'
	@echo 'make tidy       clang-tidy over everything'
	@echo 'make format     clang-format over everything'
	@echo 'make clean      forget what was built'

build:
	@tools/setup.sh build
	@tools/build.sh quire quire_cli

benches:
	@tools/setup.sh build
	@tools/build.sh benches

# The cards and questions are made by the demo model's own generator; same seed, same cards.
$(DEMO_CONTEXT): models/cardfile/cardfile.py Makefile
	@mkdir -p $(@D)
	@python3 models/cardfile/cardfile.py write --seed 24 --contexts 1 --chunks 52 --questions 8 --out $@

$(DEMO_QUESTIONS): models/cardfile/cardfile.py Makefile
	@mkdir -p $(@D)
	@python3 models/cardfile/cardfile.py write --seed 7 --contexts 4 --out $@

# First, because the generator needs Python. All of the product, so that `pip install .` finds it built.
build-demo:
	@tools/setup.sh build
	@tools/build.sh quire quire_cli quire_demo quire_chunk_demo reuse_accuracy

demo: build-demo $(DEMO_CONTEXT) $(DEMO_QUESTIONS)
	@build/release/apps/demo/quire_demo models/cardfile/model $(DEMO_CONTEXT)
	@build/release/apps/demo/quire_chunk_demo models/cardfile/model $(DEMO_CONTEXT)
	@echo; echo 'What each way of reuse does to the answers (percent right, questions asked):'
	@build/release/bench/reuse_accuracy models/cardfile/model $(DEMO_QUESTIONS)
	@echo; echo 'The same where 6 of 8 layers carry a state; layers 0-3 are computed again:'
	@build/release/bench/reuse_accuracy models/hybrid/model $(DEMO_QUESTIONS) 0 exact anchored 'layers 0-3'
	@python3 tools/demo_serve.py build/release/apps/cli/quire models/cardfile/model $(DEMO_CONTEXT)

demo-chat: build
	@tools/demo_chat.sh

check:
	@tools/setup.sh test
	@.venv/bin/python tools/check.py check

check-all: check check-rest

# What check-all does beside check.
check-rest:
	@tools/setup.sh all
	@.venv/bin/python tools/check.py rest $(if $(ALL),--every)

# For a GPU machine without Debian packages, build here and carry build/gpu: tools/gpu_package.sh.
build-gpu:
	@tools/setup.sh test
	@cmake --preset cuda > /dev/null
	@cmake --build --preset cuda

check-gpu: build-gpu
	@ctest --preset cuda

bench-gpu: build-gpu
	@for bench in build/cuda/gpu/*_bench; do "$$bench"; done

asan:
	@tools/setup.sh all
	@.venv/bin/python tools/check.py --only asan asan-rest

tsan fuzz:
	@tools/setup.sh all
	@.venv/bin/python tools/check.py --only $@

tidy:
	@tools/setup.sh all
	@.venv/bin/python tools/check.py --only tidy-all

docs:
	@tools/setup.sh docs
	@.venv-docs/bin/python tools/build_site.py

format:
	@tools/setup.sh test
	@git ls-files -co --exclude-standard -- '*.cc' '*.h' '*.cu' '*.cuh' | xargs clang-format-19 -i

clean:
	rm -rf build
