#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the guests' root file system, and prints its path: an ext4 image that every kernel of
# kernels.list mounts without an initramfs or a module. It holds Debian's Python, Ruby and libbpf;
# the package under test comes in with each job. Made once, and again when this recipe changes.
# Needs root (debootstrap).
set -euo pipefail
. "$(dirname "$0")/common.sh"

suite=bookworm
# python3-ply must be named: debootstrap does not follow the virtual package that asks for it.
# python3-cffi-backend must be, too, where debootstrap only unpacks.
packages=python3,python3-cffi,python3-cffi-backend,python3-ply,libbpf1,libelf1,busybox-static,procps,ruby
arch=$(debian_arch)
recipe=$(cat "$0" "$ci_kernels/vm-init" | sha256sum | cut -c1-12)
dir=$cache/vm
image=$dir/root-$arch-$recipe.ext4

mkdir -p "$dir"
exec 8>"$dir/root-$arch.lock"
flock 8 # two runs at once build one image
if [ -s "$image" ]; then
  echo "$image"
  exit
fi
[ "$(id -u)" = 0 ] || die "building the guests' root image needs root (debootstrap); run once as root"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
say "building the guests' root image ($suite, $arch): about a minute, once"
# Another machine's packages cannot run their own set-up here. They are laid out only, which is enough
# for what the guests do, and takes no emulator.
foreign=
[ "$arch" = "$(dpkg --print-architecture)" ] || foreign=--foreign
debootstrap $foreign --arch="$arch" --variant=minbase --include="$packages" --keyring="$(keyring)" \
  "$suite" "$work/root" "$(archive_of "$suite")" >"$dir/debootstrap.log" 2>&1 ||
  { tail -n 20 "$dir/debootstrap.log" >&2; die "debootstrap failed; its log is $dir/debootstrap.log"; }
if [ -n "$foreign" ]; then
  for deb in "$work"/root/var/cache/apt/archives/*.deb; do dpkg-deb -x "$deb" "$work/root"; done
  echo 'root:x:0:0:root:/root:/bin/sh' >"$work/root/etc/passwd"
  rm -rf "$work/root/debootstrap"
fi
rm -rf "$work"/root/var/cache/apt/* "$work"/root/var/lib/apt/lists/* \
  "$work"/root/usr/share/{doc,man,locale,info}/* "$work"/root/usr/share/ri
install -m 755 "$ci_kernels/vm-init" "$work/root/vm-init"
# The features that are left out would lock old kernels out.
truncate -s 800M "$work/root.ext4"
mkfs.ext4 -q -F -O ^metadata_csum_seed,^orphan_file -d "$work/root" "$work/root.ext4"
rm -f "$dir/root-$arch"-*.ext4
cp --sparse=always "$work/root.ext4" "$image.part"
mv "$image.part" "$image"
echo "$image"
