#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests of the C extension, built with AddressSanitizer and UBSan: `make sanitize`, or
#
#     support/sanitize.sh [PYTEST ARGUMENTS]
#
# The sanitizer's library has to be loaded before Python is. Python's own memory stays unchecked, and leaks are not
# looked for: the interpreter keeps much of it to its end.
set -euo pipefail

cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-$PWD/.venv/bin/python}
bin=$(dirname "$PYTHON")
export PATH="$bin:$PATH" CC=${CC:-cc}
build=build/sanitize
tests=(
  tests/unit/test_stack_deltas.py
  tests/unit/test_unwind_oracle.py
  tests/unit/test_fuzz_findings.py
  tests/live/test_host_equals_kernel.py
  tests/live/test_user_backend.py
)

mkdir -p build
if [ ! -f $build/build.ninja ]; then
  CFLAGS=-fno-sanitize-recover=undefined meson setup $build -Dbuildtype=debugoptimized -Db_lundef=false \
    -Db_sanitize=address,undefined >build/sanitize-setup.log || { cat build/sanitize-setup.log; exit 1; }
fi
ninja --quiet -C $build
rm -rf $build/site
mkdir -p $build/site/rubyunwind/objects
for entry in src/rubyunwind/*; do
  [ "$(basename "$entry")" = objects ] || ln -s "$PWD/$entry" $build/site/rubyunwind/
done
ln -s "$PWD"/$build/_native*.so "$PWD"/$build/_libbpf.py $build/site/rubyunwind/
ln -s "$PWD"/$build/tracer.ebpf.*.o $build/site/rubyunwind/objects/

ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
  LD_PRELOAD="$($CC -print-file-name=libasan.so)" PYTHONPATH=$build/site PYTHONDONTWRITEBYTECODE=1 \
  PYTHONMALLOC=malloc exec "$PYTHON" -m pytest -q "${tests[@]}" "$@"
