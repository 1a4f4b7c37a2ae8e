# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2016
# Sourced by the scripts beside it and by run-tests.sh.

ci_kernels=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$ci_kernels/../debian.sh"

# Makes $work, a directory that is gone when the script is, and with it the process in $guest_pid, if any.
make_scratch() {
  work=$(mktemp -d)
  guest_pid=
  trap end_scratch EXIT
  trap 'say "interrupted"; exit 130' INT
  trap 'exit 143' TERM HUP
}
end_scratch() {
  if [ -n "$guest_pid" ]; then
    kill "$guest_pid" 2>/dev/null || true
    wait "$guest_pid" 2>/dev/null || true
  fi
  rm -rf "$work"
}

# Lines of kernels.list for the machine to be tested: VERSION SUITE...
kernel_list() {
  awk -v arch="$(debian_arch)" '!/^#/ && index("," $2 ",", "," arch ",") { $2 = ""; print }' "$ci_kernels/kernels.list"
}
known_kernels() { kernel_list | awk '{ printf "%s%s", separator, $1; separator = " " }'; }

# Debian's name for the machine to be tested.
debian_arch() {
  case ${ARCH:-$(uname -m)} in
    x86_64 | amd64) echo amd64 ;;
    aarch64 | arm64) echo arm64 ;;
    *) die "no kernels are known for ${ARCH:-$(uname -m)}: amd64 and arm64 only" ;;
  esac
}

# The guest's serial port, which is its console.
terminal() { case $(debian_arch) in amd64) echo ttyS0 ;; arm64) echo ttyAMA0 ;; esac; }
