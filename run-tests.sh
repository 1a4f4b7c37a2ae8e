#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Loads the BPF programs on other kernels, each in a VM, and runs tests/kernels there.
#
#     ./run-tests.sh VERSION...                    Debian's newest cloud kernel of that version
#     KERN_DIR=dir/ ./run-tests.sh 5.4.31          dir/linux-5.4.31.bz, a kernel of your own
#     ./run-tests.sh                               the versions that are known
#     ./run-tests.sh --run 'COMMAND' VERSION       run COMMAND in the guest in place of the tests
#     ./run-tests.sh --shell VERSION               a shell in the guest, on this terminal
#
# In the guest the tests lie in /tmp/job, and `python3` imports the package that was built from this tree.
# ARCH=arm64 (or amd64) runs guests of another machine. VM_QEMU="-s -S" and the like go to qemu as they are.
# Exit status 0 only if every test ran and passed on each kernel. The VM is emulated (no KVM needed),
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

arch=$(debian_arch)
limit=${VM_TIMEOUT:-240}
work=$(mktemp -d)
guest_pid=
finish() {
  if [ -n "$guest_pid" ]; then
    kill "$guest_pid" 2>/dev/null || true
    wait "$guest_pid" 2>/dev/null || true
  fi
  rm -rf "$work"
}
trap finish EXIT
trap 'say "interrupted"; exit 130' INT
trap 'exit 143' TERM HUP

case $arch in
  # Without -cx16: the emulation of cmpxchg16b in older QEMU breaks kernels from 6.12 on.
  amd64) qemu=(qemu-system-x86_64 -cpu 'max,-cx16') terminal=/dev/ttyS0 ;;
  arm64) qemu=(qemu-system-aarch64 -M virt -cpu cortex-a72) terminal=/dev/ttyAMA0 ;;
esac

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
tar --exclude=./build --exclude=./.venv --exclude=./.git -cf - . | tar -C "$work/job/tree" -xf -
{
  echo 'export PYTHONPATH=/tmp/job/site:/tmp/job/tree/tests PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1'
  echo 'cd tree'
  if [ -n "$shell" ]; then
    read -r rows columns < <(stty size)
    echo "stty rows $rows cols $columns <$terminal"
    echo 'echo "The tree is here; leave the shell to end the guest."'
    echo "exec setsid -c env TERM=$TERM sh -i <$terminal >$terminal 2>&1"
  else
    echo 'echo JOBBEGIN'
    printf 'exec sh -c %q\n' "${command:-exec python3 support/ci-kernels/guest.py tests/kernels}"
  fi
} >"$work/job/run.sh"
tar -C "$work/job" -cf "$work/job.tar" .
# One disk only, and the job put into it without mounting: two disks race for the root's name.
cp --sparse=always "$root" "$work/root.ext4"
debugfs -w -R "write $work/job.tar job.tar" "$work/root.ext4" >"$work/debugfs.log" 2>&1
debugfs -R 'stat job.tar' "$work/root.ext4" 2>/dev/null | grep -q "Size: $(stat -c %s "$work/job.tar")" ||
  { cat "$work/debugfs.log" >&2; die "the job ($(du -h "$work/job.tar" | cut -f1)) did not get into the guest's disk"; }

# ---- one guest ---------------------------------------------------------------------------------

qemu+=(-accel "tcg,thread=multi" -smp 2 -m 1024 -nodefaults -display none -no-reboot -net none -snapshot
  -drive "if=none,id=r,format=raw,file=$work/root.ext4" -device "nvme,drive=r,serial=r"
  -append "console=${terminal#/dev/} panic=-1 quiet nokaslr root=/dev/nvme0n1 rootwait rootfstype=ext4 rw init=/vm-init")
# More options, split at spaces.
read -r -a more <<<"${VM_QEMU-}"
qemu+=("${more[@]}")

if [ -n "$shell" ]; then
  say "kernel $1: ${kernels[0]}; Ctrl-A x ends it at once"
  "${qemu[@]}" -kernel "${kernels[0]}" -serial mon:stdio
  exit
fi

# Starts the guest, waits for its end, leaves the console in $work/VERSION.log.
run_guest() {
  local version=$1 kernel=$2 log=$work/$1.log
  # setpriv: should this script be killed outright, the guest dies too.
  setpriv --pdeathsig TERM timeout -k 5 "$limit" setpriv --pdeathsig KILL \
    "${qemu[@]}" -kernel "$kernel" -serial stdio </dev/null >"$log" 2>&1 &
  guest_pid=$!
  local status=0
  wait "$guest_pid" || status=$?
  guest_pid=
  sed -i 's/\r$//' "$log"
  if [ "$status" = 124 ] || [ "$status" = 137 ]; then
    reason="no end within $limit s"
    return 1
  fi
  local result
  result=$(grep -a -o '^JOBRC [0-9]*$' "$log" | tail -n 1)
  case $result in
    'JOBRC 0') return 0 ;;
    '') reason="the guest went down before the tests ended (qemu's status $status)" ;;
    *) reason="tests failed (status ${result#JOBRC })" ;;
  esac
  return 1
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
  reason=
  if run_guest "$version" "$kernel"; then
    if [ -n "$command" ]; then
      sed -n "/^JOBBEGIN$/,/^JOBRC /p" "$work/$version.log" | sed -e 1d -e "\$d"
    else
      grep -a -e '^kernel ' -e ' passed' "$work/$version.log"
    fi
    say "kernel $version: passed, $((SECONDS - started)) s"
  else
    mkdir -p build/vm-logs
    kept=$(mktemp "build/vm-logs/linux-${version//\//_}-XXXXXX.log")
    cp "$work/$version.log" "$kept"
    tail -n 60 "$kept" >&2
    say "kernel $version: FAILED, $reason; the whole console is in $kept"
    failed+=("$version")
  fi
done
[ -n "$command" ] || python3 support/ci-kernels/table.py "${logs[@]}"
if [ ${#failed[@]} -gt 0 ]; then die "failed on: ${failed[*]}"; fi
say "passed on: $*"
