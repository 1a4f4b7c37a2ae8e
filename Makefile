# SPDX-License-Identifier: Apache-2.0
#
# Each target may be the first thing typed on a fresh Debian 12: support/setup.sh gets what is
# missing (packages need root), makes .venv and builds the package, and takes no time when all is there.
.DELETE_ON_ERROR:
.PHONY: help setup ebpf demo picture test page-test bench fuzz sanitize lint format clean test-vm test-kernels truth truth-built soak rails wheels release-test foreign

SETUP := support/setup.sh
BIN := .venv/bin
OBJECTS := $(foreach kind,release debug,$(foreach arch,amd64 arm64,tracer.ebpf.$(kind).$(arch).o))
DEMO_SECONDS ?= 5
DEMO_OUTPUT ?= demo.html
# For all fuzz targets together; FUZZ_ARGS=--keep puts new inputs into the committed corpus.
FUZZ_SECONDS ?= 600
FUZZ_ARGS ?=
# Kernel for `make test-vm`, any that `./run-tests.sh` lists; more pytest options for `make test`.
KERNEL ?= 6.1
PYTEST_ARGS ?=
C_SOURCES = $(wildcard support/ebpf/*.h support/ebpf/*.c support/ebpf/host/*.h support/ebpf/host/*.c src/rubyunwind/_c/*.h src/rubyunwind/_c/*.c fuzz/*.c)

help:
	@echo 'make demo      record a real Ruby program and leave $(DEMO_OUTPUT), a flame graph for the browser'
	@echo 'make picture   take the pictures in docs/ anew, of that flame graph and others of the program'
	@echo 'make test      unit and live tests'
	@echo 'make foreign   have our files read by speedscope, pprof, callgrind_annotate, flame graph scripts, Firefox'
	@echo 'make page-test  click through the flame graph page in a headless Chromium'
	@echo 'make test-vm   load the BPF programs on another kernel, in a VM (KERNEL=6.1)'
	@echo 'make test-kernels  the same on all that are known, arm64 too, with tables; half a minute each, once fetched'
	@echo 'make truth     hold all samples against what Ruby itself prints: 2.7, 3.1, 3.3, 3.4; with tables; four minutes'
	@echo 'make truth-built  the same on Rubies built from sources: with musl; ten minutes to build the first time'
	@echo 'make soak      twenty minutes: an agent among processes that come and go, then code that does (SOAK_SECONDS=600)'
	@echo 'make rails     record Redmine under load: at least 99 % of the stacks are whole'
	@echo 'make wheels    build the package for amd64 and arm64, and the sdist, into dist/'
	@echo 'make release-test  try them in bare Debian roots and other Pythons; some minutes'
	@echo 'make bench     print the numbers'
	@echo 'make fuzz      feed broken input to all that reads a process or a file, for ten minutes (FUZZ_SECONDS=600)'
	@echo 'make sanitize  tests of the C code under AddressSanitizer and UBSan'
	@echo 'make ebpf      compile the BPF objects into src/rubyunwind/objects/'
	@echo 'make lint      ruff, mypy, clang-format'
	@echo 'make format    let ruff and clang-format rewrite the sources'
	@echo 'make clean     remove what was built, the .venv too'

setup:
	@$(SETUP) build

ebpf:
	@$(SETUP) --tools-only build
	@[ -f build/ebpf/build.ninja ] || PATH="$(CURDIR)/$(BIN):$$PATH" meson setup build/ebpf >build/ebpf-setup.log || \
	  { cat build/ebpf-setup.log; rm -rf build/ebpf; exit 1; }
	@PATH="$(CURDIR)/$(BIN):$$PATH" ninja --quiet -C build/ebpf $(OBJECTS)
	@mkdir -p src/rubyunwind/objects
	@cp $(addprefix build/ebpf/,$(OBJECTS)) src/rubyunwind/objects/
	@ls -l $(addprefix src/rubyunwind/objects/,$(OBJECTS))

demo:
	@$(SETUP) demo
	@mkdir -p build/demo
	@$(BIN)/python support/demo_document.py build/demo/document.adoc
	@echo 'recording asciidoctor for $(DEMO_SECONDS) s'
	@$(BIN)/rubyunwind record -d $(DEMO_SECONDS) -o '$(DEMO_OUTPUT)' -- asciidoctor -o build/demo/document.html build/demo/document.adoc
	@echo 'flame graph: $(abspath $(DEMO_OUTPUT))'

# docs/*.png and *.svg, of that program.
picture: demo
	@$(SETUP) page
	@support/pictures.sh '$(DEMO_OUTPUT)'

# CI sets RUBYUNWIND_REQUIRE_LIVE=1: a run in which no live test passed then fails.
test:
	@$(SETUP) test
	@$(BIN)/python -m pytest tests/unit tests/page tests/live $(PYTEST_ARGS)

# What other people's programs make of our files. They are large, so `make test` skips what is not there.
foreign:
	@$(SETUP) foreign
	@$(BIN)/python -m pytest tests/foreign tests/unit/test_docs.py $(PYTEST_ARGS)

test-vm:
	@./run-tests.sh $(KERNEL)

# These run with `make test`, too, where there is a Chromium; here one is installed.
page-test:
	@$(SETUP) page
	@RUBYUNWIND_REQUIRE_CHROMIUM=1 $(BIN)/python -m pytest tests/page $(PYTEST_ARGS)

# Every kernel that support/ci-kernels/kernels.list names; a table for each machine.
test-kernels:
	@status=0; for arch in amd64 arm64; do ARCH=$$arch ./run-tests.sh all || status=1; done; exit $$status

# Every Ruby that support/ci-rubies/rubies.list names; the tables go into docs/rubies.md.
# TRUTH_ARGS='--refresh 3.3': some of them, in their newest version; tables are written only when all ran.
TRUTH_ARGS ?= --write
truth:
	@$(SETUP) test
	@PYTHONPATH=tests $(BIN)/python -m rubies.run $(TRUTH_ARGS)

# Rubies of support/ci-rubies/built.list: BUILT_RUBIES='yjit-3.3 static-3.3' for others.
BUILT_RUBIES ?= musl-3.3 musl-static-3.3
truth-built:
	@$(SETUP) test built
	@PYTHONPATH=tests $(BIN)/python -m rubies.run $(BUILT_RUBIES)

# An agent that samples everything while processes come and go; its table goes into docs/soak.md, unless
# SOAK_ARGS says otherwise. Then as long code that is loaded, removed, collected and moved, under both unwinders.
SOAK_SECONDS ?= 600
SOAK_ARGS ?= --write
soak:
	@$(SETUP) test
	@PYTHONPATH=tests $(BIN)/python -m soak.run --seconds $(SOAK_SECONDS) $(SOAK_ARGS)
	@RUBYUNWIND_SOAK=$$(($(SOAK_SECONDS) / 2)) $(BIN)/python -m pytest tests/live/test_reloading.py

# A real Rails application under load, in a root of its own.
rails:
	@$(SETUP) vm
	@support/rails-test.sh

# The sdist holds what is committed.
wheels:
	@$(SETUP) cross release
	@rm -rf dist
	@set -e; for arch in amd64 arm64; do support/release-wheel.sh $$arch dist; done
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -c 'import mesonpy; mesonpy.build_sdist("dist")' >build/sdist.log 2>&1 || \
	  { tail build/sdist.log; exit 1; }
	@ls -l dist/

# Bare Debian roots, cached; other Pythons where they are found.
release-test: wheels
	@$(SETUP) vm
	@support/release-test.sh

bench:
	@$(SETUP) demo
	@$(BIN)/python bench/run.py

fuzz:
	@$(SETUP) fuzz
	@$(BIN)/python fuzz/run.py --seconds $(FUZZ_SECONDS) $(FUZZ_ARGS)

sanitize:
	@$(SETUP) test
	@support/sanitize.sh $(PYTEST_ARGS)

lint:
	@$(SETUP) lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	clang-format --dry-run -Werror $(C_SOURCES)

format:
	@$(SETUP) --tools-only lint
	-$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	clang-format -i $(C_SOURCES)

clean:
	rm -rf build .venv src/rubyunwind/objects dist demo.html .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests bench support -name __pycache__ -type d -prune -exec rm -rf {} +
