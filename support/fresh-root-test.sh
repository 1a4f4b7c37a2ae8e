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
  root=$2 target=$3
  mount -t proc proc "$root/proc"
  mount -t sysfs sysfs "$root/sys"
  pass=()
  while IFS='=' read -r name value; do
    case $name in
      PIP_FIND_LINKS) ;; # a directory of this machine
      PIP_* | *_proxy | *_PROXY | SSL_CERT_FILE | SSL_CERT_DIR | REQUESTS_CA_BUNDLE | CURL_CA_BUNDLE)
        pass+=("$name=$value") ;;
    esac
  done < <(env)
  exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM="${TERM:-dumb}" ${pass[@]+"${pass[@]}"} \
    chroot "$root" make -C /src "$target" </dev/null
fi

[ $# -gt 0 ] || die "usage: $0 [--worktree] [--keep DIR] TARGET..."
[ "$(id -u)" = 0 ] || die "needs root (debootstrap, chroot)"
base=$cache/fresh/bookworm-$(debian_arch).tar
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM

if [ ! -s "$base" ]; then
  say "making the bare root, once"
  mkdir -p "$(dirname "$base")"
  debootstrap --variant=minbase --include=make,ca-certificates --keyring="$(keyring)" bookworm \
    "$work/base" "$(archive_of bookworm)" >"$work/debootstrap.log" 2>&1 || { tail "$work/debootstrap.log"; exit 1; }
  tar -C "$work/base" -cf "$base.part" .
  mv "$base.part" "$base"
  rm -rf "$work/base"
fi

lay_root() {
  local root=$1
  mkdir -p "$root"
  tar -C "$root" -xf "$base"
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  if [ -f /etc/pip.conf ]; then cp /etc/pip.conf "$root/etc/pip.conf"; fi
  if ls /usr/local/share/ca-certificates/*.crt >/dev/null 2>&1; then
    mkdir -p "$root/usr/local/share/ca-certificates"
    cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/"
    chroot "$root" update-ca-certificates >/dev/null 2>&1
  fi
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
