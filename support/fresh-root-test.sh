#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Types `make TARGET` as the first thing in a fresh Debian 12: a debootstrap root with make and
# ca-certificates, /proc and /sys, and the committed tree. Each target gets a root of its own.
#
#     support/fresh-root-test.sh [--worktree] [--keep DIR] TARGET...
#
# --worktree takes the files as they are, with those not committed yet. --keep leaves the last root in
# DIR. Needs root. The bare root is cached. What configures the network here (resolver, certificates,
# pip, proxies) is given to the root too; nothing else of this machine is.
set -euo pipefail
. "$(dirname "$0")/ci-kernels/common.sh"
tree=$(cd "$(dirname "$0")/.." && pwd)

worktree=""
keep=""
while :; do
  case ${1-} in
    --worktree) worktree=yes ;;
    --keep) keep=$2; shift ;;
    --inside) break ;;
    *) break ;;
  esac
  shift
done

# In a mount namespace of its own, so that no mount outlives us: chroot and make.
if [ "${1-}" = --inside ]; then
  run_inside "$2" TERM="${TERM:-dumb}" -- make -C /src "$3"
fi

[ $# -gt 0 ] || die "usage: $0 [--worktree] [--keep DIR] TARGET..."
[ "$(id -u)" = 0 ] || die "needs root (debootstrap, chroot)"
base=$cache/fresh/bookworm-$(debian_arch).tar
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM

bare_root "$base" bookworm make

lay_root() {
  local root=$1
  mkdir -p "$root"
  tar -C "$root" -xf "$base"
  copy_network "$root"
  mkdir "$root/src"
  if [ -n "$worktree" ]; then
    (cd "$tree" && git ls-files -co --exclude-standard -z | xargs -0 sh -c 'for f; do [ -e "$f" ] && printf "%s\0" "$f"; done' sh |
      tar --null -T - -cf -) | tar -C "$root/src" -xf -
  else
    git -C "$tree" archive HEAD | tar -C "$root/src" -xf -
  fi
}

for target in "$@"; do
  root=$work/root
  rm -rf --one-file-system "$root"
  lay_root "$root"
  say "make $target"
  started=$SECONDS status=0
  unshare --mount --propagation private bash "$0" --inside "$root" "$target" || status=$?
  [ -z "$keep" ] || { rm -rf --one-file-system "$keep"; cp -a "$root" "$keep"; }
  [ "$status" = 0 ] || die "make $target FAILED with status $status in a fresh root, after $((SECONDS - started)) s"
  say "make $target: fine, $((SECONDS - started)) s"
done
