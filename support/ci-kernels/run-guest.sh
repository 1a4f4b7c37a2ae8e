#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Boots a kernel in a VM, which runs a job, and waits for its end.
#
#     support/ci-kernels/run-guest.sh ROOT KERNEL JOB.tar CONSOLE
#     support/ci-kernels/run-guest.sh --shell ROOT KERNEL JOB.tar
#
# ROOT is the image of build-root.sh, JOB.tar has a run.sh at its top, CONSOLE becomes what the guest printed.
# Exit status 0 only if run.sh ran and ended with 0; else the last line on stderr says why. The VM has 2 CPUs,
# 1 GiB and no network, and is gone when this script is, however it ends: after VM_TIMEOUT seconds (default
# 240) at the latest. With --shell it has this terminal, and no limit. It runs on KVM where that is seen to
# work, else it is emulated.
# VM_ACCEL: kvm or tcg, not asking. VM_QEMU: more options for qemu, split at spaces. ARCH: the guest's machine.
set -euo pipefail
. "$(dirname "$0")/common.sh"

shell=''
if [ "${1-}" = --shell ]; then
  shell=yes
  shift
fi
root=${1-} kernel=${2-} job=${3-} log=${4-}
[ -n "$job" ] && [ -n "$shell$log" ] || die "usage: $0 ROOT KERNEL JOB.tar CONSOLE, or --shell ROOT KERNEL JOB.tar"

case $(debian_arch) in
  # Without -cx16: the emulation of cmpxchg16b in older QEMU breaks kernels from 6.12 on.
  amd64) qemu=(qemu-system-x86_64) cpu='max,-cx16' package=qemu-system-x86 ;;
  arm64) qemu=(qemu-system-aarch64 -M virt) cpu=cortex-a72 package=qemu-system-arm ;;
esac
command -v "${qemu[0]}" >/dev/null || die "${qemu[0]} is not installed (Debian: apt-get install $package)"
command -v debugfs >/dev/null || die "debugfs is not installed (Debian: apt-get install e2fsprogs)"

# Documentation/arch/x86/boot.rst: "HdrS" at 0x202. Documentation/arch/arm64/booting.rst: "ARM\x64" at 56;
# compressed ones are EFI programs with "zimg" at 4 (drivers/firmware/efi/libstub/zboot-header.S).
bytes_at() { dd if="$kernel" bs=1 skip="$1" count=4 2>/dev/null | tr -d '\0'; }
[ -f "$kernel" ] || die "$kernel does not exist, or is no file"
case $(debian_arch) in
  amd64) [ "$(bytes_at 514)" = HdrS ] || die "$kernel is no kernel image for amd64 (a bzImage or vmlinuz)" ;;
  arm64)
    [ "$(bytes_at 56)" = ARMd ] || [ "$(bytes_at 4)" = zimg ] ||
      die "$kernel is no kernel image for arm64 (an Image or vmlinuz)"
    ;;
esac

make_scratch

# One disk only, and the job put into it without mounting: two disks race for the root's name.
needed=$(($(du -k "$root" | cut -f1) + $(du -k "$job" | cut -f1)))
free=$(df -Pk "$work" | awk 'NR == 2 { print $4 }')
[ "$free" -gt "$needed" ] ||
  die "no room for the guest's disk in ${TMPDIR:-/tmp}: it takes $((needed / 1024 + 1)) MB, $((free / 1024)) are free (TMPDIR names another place)"
cp --sparse=always "$root" "$work/root.ext4"
debugfs -w -R "write $job job.tar" "$work/root.ext4" >"$work/debugfs.log" 2>&1
# Its status does not tell, and a file that was cut short has the whole size.
debugfs -R 'cat job.tar' "$work/root.ext4" 2>>"$work/debugfs.log" | cmp -s - "$job" ||
  { cat "$work/debugfs.log" >&2; die "the job ($(du -h "$job" | cut -f1)) does not fit into the guest's disk"; }

# Whether a guest runs on KVM, by one that does nothing but stop: many virtual machines have a /dev/kvm on
# which no guest starts, or each hangs. mov al, 0x10; out 0xf4, al; hlt: qemu exits with 0x10 << 1 | 1.
kvm_works() {
  [ "$(debian_arch)/$(uname -m)" = amd64/x86_64 ] && [ -w /dev/kvm ] || return 1
  printf '\xb0\x10\xe6\xf4\xf4\xeb\xfd' >"$work/boot"
  truncate -s 510 "$work/boot"
  printf '\x55\xaa' >>"$work/boot"
  local status=0
  timeout -k 1 10 "${qemu[0]}" -accel kvm -cpu host -m 64 -nodefaults -display none -no-reboot \
    -device isa-debug-exit,iobase=0xf4,iosize=1 -drive "format=raw,file=$work/boot,if=ide" \
    </dev/null >/dev/null 2>&1 || status=$?
  [ "$status" = 33 ]
}

# The shell's own line on a program that was aborted goes with the rest.
accel=${VM_ACCEL:-$( (kvm_works && echo kvm || echo tcg) 2>/dev/null)}
[ "$accel" = kvm ] && qemu+=(-accel kvm -cpu host) || qemu+=(-accel "tcg,thread=multi" -cpu "$cpu")
qemu+=(-smp 2 -m 1024 -nodefaults -display none -no-reboot -net none -snapshot
  -kernel "$kernel" -drive "if=none,id=r,format=raw,file=$work/root.ext4" -device "nvme,drive=r,serial=r"
  -append "console=$(terminal) panic=-1 quiet nokaslr root=/dev/nvme0n1 rootwait rootfstype=ext4 rw init=/vm-init")
read -r -a more <<<"${VM_QEMU-}"
qemu+=("${more[@]}")

if [ -n "$shell" ]; then
  "${qemu[@]}" -serial mon:stdio
  exit
fi

# setpriv: should this script be killed outright, the guest dies too.
limit=${VM_TIMEOUT:-240}
setpriv --pdeathsig TERM timeout -k 5 "$limit" setpriv --pdeathsig KILL \
  "${qemu[@]}" -serial stdio </dev/null >"$log" 2>&1 &
guest_pid=$!
status=0
wait "$guest_pid" || status=$?
guest_pid=
sed -i 's/\r$//' "$log"
case $status in 124 | 137) die "no end within $limit s" ;; esac
result=$(grep -a -o '^JOBRC [0-9]*$' "$log" | tail -n 1 || true)
case $result in
  'JOBRC 0') ;;
  '') die "the guest went down before its job ended (qemu's status $status)" ;;
  *) die "the job failed (status ${result#JOBRC })" ;;
esac
