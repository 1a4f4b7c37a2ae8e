#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Tries what `make wheels` has left in dist/, as somebody who installs it would:
#
# 1. tests/release: what is inside, the tags (auditwheel, abi3audit), the licences;
# 2. the wheel in Debian roots that have Python, pip and Ruby, but neither a compiler nor libbpf: doctor, record;
# 3. the sdist in a root of its own, with the packages that docs/install.md names;
# 4. the wheel in each other Python that is found here (python3.N in PATH, or $RELEASE_PYTHONS).
#
#     support/release-test.sh [SUITE...]       default: bookworm trixie
#
# Needs root (debootstrap, chroot, BPF) and the network. The bare roots are cached.
set -euo pipefail
. "$(dirname "$0")/ci-kernels/common.sh"
tree=$(cd "$(dirname "$0")/.." && pwd)

# What runs in each root or virtual environment: RUBYUNWIND is the command.
trial='
set -e
"$RUBYUNWIND" --version
"$RUBYUNWIND" doctor >"$OUT/doctor.txt" || { cat "$OUT/doctor.txt"; exit 1; }
"$RUBYUNWIND" record -r 199 -o "$OUT/trial.html" -- ruby "$OUT/trial.rb"
"$RUBYUNWIND" record -r 199 -f folded -o "$OUT/trial.folded" -- ruby "$OUT/trial.rb"
"$RUBYUNWIND" snapshot --help >"$OUT/help.txt"
grep -q "Object#inner" "$OUT/trial.folded"
grep -qi "<!doctype html>" "$OUT/trial.html"
'
program='
class Object
  def inner(n) = n.times { |i| Math.sqrt(i) }
end
inner(1000) while Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) < 1
'

# In a mount namespace of its own, so that no mount outlives us: chroot and a script.
if [ "${1-}" = --inside ]; then
  run_inside "$2" LANG=C.UTF-8 PIP_DISABLE_PIP_VERSION_CHECK=1 RUBYUNWIND=/venv/bin/rubyunwind OUT=/trial -- \
    sh /trial/run.sh
fi

[ "$(id -u)" = 0 ] || die "needs root (debootstrap, chroot, BPF)"
case $(debian_arch) in amd64) machine=x86_64 ;; arm64) machine=aarch64 ;; esac
wheel=$(echo "$tree"/dist/rubyunwind-*_"$machine".whl)
sdist=$(echo "$tree"/dist/rubyunwind-*.tar.gz)
[ -f "$wheel" ] && [ -f "$sdist" ] || die "dist/ has no wheel for $machine and sdist, one of each: make clean wheels"
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM

# root_of NAME SUITE PACKAGES: lays $work/NAME, a Debian root with these packages.
root_of() {
  local base=$cache/release/$1-$(debian_arch).tar
  bare_root "$base" "$2" "$3"
  mkdir -p "$work/$1"
  tar -C "$work/$1" -xf "$base"
  mkdir -p "$work/$1/trial"
  printf '%s' "$program" >"$work/$1/trial/trial.rb"
  copy_network "$work/$1"
}
run_in() { unshare --mount --propagation private bash "$0" --inside "$work/$1"; }

say "what is inside"
(cd "$tree" && .venv/bin/python -m pytest -q -p no:cacheprovider tests/release)

[ $# -gt 0 ] || set -- bookworm trixie
for suite; do
  root_of "$suite" "$suite" python3,python3-venv,ruby
  say "$suite: $(basename "$wheel"), without compiler and libbpf"
  cp "$wheel" "$work/$suite/trial/"
  {
    echo 'for tool in cc gcc clang; do ! command -v $tool || { echo "there is a compiler: $tool"; exit 1; }; done'
    echo '! find / -xdev -name "libbpf.so*" | grep . || { echo "there is a libbpf"; exit 1; }'
    echo 'python3 -m venv /venv && /venv/bin/pip install -q /trial/*.whl && python3 --version && ruby --version'
    echo "$trial"
    echo 'grep -q "site-packages/rubyunwind/libs/libbpf.so.1" /trial/doctor.txt || { cat /trial/doctor.txt; exit 1; }'
  } >"$work/$suite/trial/run.sh"
  run_in "$suite"
  rm -rf --one-file-system "${work:?}/$suite"
done

say "the sdist, in a root with the packages to build it"
root_of sdist bookworm python3,python3-venv,python3-dev,gcc,libc6-dev,clang,libbpf1,ruby
cp "$sdist" "$work/sdist/trial/"
{
  echo 'python3 -m venv /venv && /venv/bin/pip install -q /trial/*.tar.gz'
  echo "$trial"
  echo 'grep -q "at libbpf.so.1" /trial/doctor.txt || { cat /trial/doctor.txt; exit 1; }'
} >"$work/sdist/trial/run.sh"
run_in sdist

mkdir "$work/here"
printf '%s' "$program" >"$work/here/trial.rb"
tried=
for python in ${RELEASE_PYTHONS-python3.10 python3.11 python3.12 python3.13 python3.14}; do
  "$python" -c "import venv" 2>/dev/null || continue # a name that pyenv has no version for fails, too
  say "$("$python" --version), of this machine"
  "$python" -m venv "$work/here/$(basename "$python")"
  "$work/here/$(basename "$python")/bin/pip" --disable-pip-version-check install -q "$wheel"
  RUBYUNWIND=$work/here/$(basename "$python")/bin/rubyunwind OUT=$work/here sh -c "$trial"
  tried="$tried $(basename "$python")"
done
say "all of it works: $*, the sdist,${tried:- no other Python here}"
