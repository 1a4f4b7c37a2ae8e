# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2016
# Sourced by the scripts beside it and by run-tests.sh.

ci_kernels=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rubyunwind

say() { echo "${0##*/}: $*" >&2; }
die() { say "$@"; exit 1; }

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

# The archive that a suite is in, taken from the machine's own apt sources, so that a mirror or a
# proxy that is set up there is used here too.
archive_of() {
  local suite=$1 uris main security
  command -v apt-get >/dev/null || die "apt-get is needed to find Debian packages; see KERN_DIR for kernels of your own"
  uris=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
    awk '$2 == "main"' | sort -u)
  main=$(awk '$1 ~ /^[a-z]+$/ && $3 ~ /debian\/?$/ { print $3; exit }' <<<"$uris")
  [ -n "$main" ] || die "the apt sources of this machine name no Debian archive (a suite such as bookworm, component main)"
  security=$(awk '$1 ~ /-security$/ { print $3; exit }' <<<"$uris")
  case $suite in
    # Debian lays the security archive beside the main one.
    *-security) echo "${security:-${main%/}-security}" ;;
    *) echo "$main" ;;
  esac
}

keyring() {
  local file=/usr/share/keyrings/debian-archive-keyring.gpg
  [ -f "$file" ] || die "$file is missing: apt-get install debian-archive-keyring"
  echo "$file"
}
