#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Loads the BPF programs on other kernels, each in a VM, and runs tests/kernels there.
#
#     ./run-tests.sh VERSION...                    Debian's newest cloud kernel of that version
#     KERN_DIR=dir/ ./run-tests.sh 5.4.31          dir/linux-5.4.31.bz, a kernel of your own
#     ./run-tests.sh 5.4.31                        built from kernel.org's sources, or before by build-kernel.sh
#     ./run-tests.sh                               the versions that are known; `all` runs on each of them
#     ./run-tests.sh --run 'COMMAND' VERSION       run COMMAND in the guest in place of the tests
#     ./run-tests.sh --shell VERSION               a shell in the guest, on this terminal
#
# In the guest the tests lie in /tmp/job, and `python3` imports the package that was built from this tree.
# ARCH=arm64 (or amd64) runs guests of another machine. RUBIES='3.3 3.4' samples these in the guest, too. VM_QEMU="-s -S" and the like go to qemu as they are.
# Exit status 0 only if every test ran and passed on each kernel. The VM is emulated where KVM does not work,
# has 2 CPUs, 1 GiB and no network, and ends after VM_TIMEOUT seconds (default 240) at the latest.
# The first run needs root and the network: it gets the kernel and builds the guests' root image.
set -euo pipefail
cd "$(dirname "$0")"
. support/ci-kernels/common.sh

command='' shell=''
case ${1-} in
  --run)
    command=${2-}
    [ -n "$command" ] || die "--run needs a command"
    shift 2
    [ $# -gt 0 ] || die "--run '$command' needs a kernel VERSION"
    ;;
  --shell)
    [ -t 0 ] || die "--shell needs a terminal; see --run for a command without one"
    shell=yes
    shift
    [ $# -eq 1 ] || die "--shell takes one kernel VERSION"
    ;;
  --help | -h) set -- ;;
  -*) die "unknown option $1; see $0 --help" ;;
esac
if [ $# -eq 0 ]; then
  echo 'usage: [KERN_DIR=dir/] [ARCH=arm64] ./run-tests.sh [--shell | --run COMMAND] VERSION...'
  echo 'known kernels (any version works with KERN_DIR, which holds it as linux-VERSION.bz):'
  kernel_list | awk '{ version = $1; $1 = ""; printf "  %-6s %s\n", version, $0 }'
  exit
fi

if [ "$*" = all ]; then
  read -r -a versions <<<"$(known_kernels)"
  set -- "${versions[@]}"
fi
for version in "$@"; do
  case $version in */* | -*) die "$version is no kernel version; see $0 --help (build-kernel.sh makes one of a tree)" ;; esac
done

arch=$(debian_arch)
make_scratch

# ---- what goes into every guest ----------------------------------------------------------------

kernel_of() {
  if [ -n "${KERN_DIR-}" ]; then
    local image=${KERN_DIR%/}/linux-$1.bz
    [ -s "$image" ] || die "$image does not exist: KERN_DIR must hold the kernel's bzImage under that name"
    echo "$image"
  else
    support/ci-kernels/get-kernel.sh "$1"
  fi
}
kernels=()
for version in "$@"; do kernels+=("$(kernel_of "$version")"); done

case $arch in
  "$(ARCH='' debian_arch)") support/setup.sh vm ;;
  *) support/setup.sh vm cross ;; # the package is built for the guest, here
esac
root=$(support/ci-kernels/build-root.sh)
mkdir "$work/job"
support/ci-kernels/build-site.sh "$work/job/site"
mkdir "$work/job/tree"
for series in ${RUBIES-}; do
  ruby=$(support/ci-rubies/build-ruby.sh "$series")
  mkdir -p "$work/job/rubies"
  cp -a "$ruby" "$work/job/rubies/$series-${ruby##*/"$series"-}"
done
tar --exclude=./build --exclude=./.venv --exclude=./.git -cf - . | tar -C "$work/job/tree" -xf -
{
  echo 'export PYTHONPATH=/tmp/job/site:/tmp/job/tree/tests PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1'
  echo 'cd tree'
  if [ -n "$shell" ]; then
    read -r rows columns < <(stty size)
    terminal=/dev/$(terminal)
    echo "stty rows $rows cols $columns <$terminal"
    echo 'echo "The tree is here; leave the shell to end the guest."'
    echo "exec setsid -c env TERM=$TERM sh -i <$terminal >$terminal 2>&1"
  else
    echo 'echo JOBBEGIN'
    printf 'exec sh -c %q\n' "${command:-exec python3 support/ci-kernels/guest.py tests/kernels}"
  fi
} >"$work/job/run.sh"
tar -C "$work/job" -cf "$work/job.tar" .

if [ -n "$shell" ]; then
  say "kernel $1: ${kernels[0]}; Ctrl-A x ends it at once"
  support/ci-kernels/run-guest.sh --shell "$root" "${kernels[0]}" "$work/job.tar"
  exit
fi

# ---- one guest after the other -----------------------------------------------------------------

# Prints where the console of a guest is kept; its end is shown.
keep_console() {
  [ -s "$log" ] || return 0
  mkdir -p build/vm-logs
  local kept
  kept=$(mktemp "build/vm-logs/linux-$1-XXXXXX.log")
  cp "$log" "$kept"
  tail -n 60 "$kept" >&2
  echo "; the whole console is in $kept"
}

failed=()
logs=()
i=0
for version in "$@"; do
  kernel=${kernels[i]}
  i=$((i + 1))
  say "kernel $version: $kernel"
  logs+=("$work/$version.log")
  started=$SECONDS
  log=$work/$version.log
  # In the background, so that a signal is not put off until it has ended.
  setpriv --pdeathsig TERM support/ci-kernels/run-guest.sh "$root" "$kernel" "$work/job.tar" "$log" &
  guest_pid=$!
  status=0
  wait "$guest_pid" || status=$?
  guest_pid=
  if [ "$status" = 0 ]; then
    if [ -n "$command" ]; then
      sed -n "/^JOBBEGIN$/,/^JOBRC /p" "$log" | sed -e 1d -e "\$d"
    else
      grep -a -e '^kernel ' -e ' passed' "$log"
    fi
    say "kernel $version: passed, $((SECONDS - started)) s"
  else
    say "kernel $version: FAILED$(keep_console "$version")"
    failed+=("$version")
  fi
done
[ -n "$command" ] || python3 support/ci-kernels/table.py "${logs[@]}"
if [ ${#failed[@]} -gt 0 ]; then die "failed on: ${failed[*]}"; fi
say "passed on: $*"
