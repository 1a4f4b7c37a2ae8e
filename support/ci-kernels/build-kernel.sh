#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds a kernel to test on, and prints the path of its image.
#
#     support/ci-kernels/build-kernel.sh TREE|TARBALL|VERSION [DIR]
#
# TREE is a directory with a kernel's sources (not written to), TARBALL such a tree as linux-*.tar.*,
# VERSION (5.4.31) is fetched from kernel.org and compared with the checksum that is published there.
# The image becomes DIR/linux-VERSION.bz, its vmlinux with symbols DIR/_build/linux-VERSION/vmlinux;
# DIR is by default the user's cache, where run-tests.sh finds it by its version. Beside it
# linux-VERSION.from tells what it was built from. config/ holds what is switched on.
# ARCH=arm64 builds for the other architecture, with aarch64-linux-gnu-gcc. JOBS: default all CPUs.
set -euo pipefail
. "$(dirname "$0")/common.sh"

source=${1-}
[ -n "$source" ] || die "usage: $0 TREE|TARBALL|VERSION [DIR]"
arch=$(debian_arch)
dir=$(realpath -m "${2:-$cache/kernels/$arch}")
mkdir -p "$dir/_build"

missing=()
for tool in make flex bison bc; do command -v "$tool" >/dev/null || missing+=("$tool"); done
case $arch in
  amd64) kernel_arch=x86_64 cross='' image=arch/x86/boot/bzImage ;;
  arm64) kernel_arch=arm64 cross=aarch64-linux-gnu- image=arch/arm64/boot/Image ;;
esac
[ "$arch" != "$(dpkg --print-architecture 2>/dev/null)" ] || cross=
command -v "${cross}gcc" >/dev/null || missing+=("gcc${cross:+-aarch64-linux-gnu}")
cc -E - <<<'#include <libelf.h>' >/dev/null 2>&1 || missing+=(libelf-dev)
[ ${#missing[@]} -eq 0 ] || die "a kernel cannot be built without: ${missing[*]} (Debian packages of these names)"

# ---- the sources -------------------------------------------------------------------------------

# Leaves the tarball of a version in DIR.
fetch() {
  local version=$1 base file sum
  command -v curl >/dev/null || die "fetching linux $version takes curl, which is not installed"
  base=https://cdn.kernel.org/pub/linux/kernel/v${version%%.*}.x
  file=linux-$version.tar.xz
  [ -s "$dir/$file" ] || curl -fsSL --connect-timeout 20 -o "$dir/$file.part" "$base/$file" || {
    rm -f "$dir/$file.part"
    die "linux $version could not be fetched from $base/$file: there is no such version, no network, or a proxy" \
      "that refuses. Get $file some other way and give its path instead of the version"
  }
  [ -s "$dir/$file" ] || {
    sum=$(curl -fsSL --connect-timeout 20 "$base/sha256sums.asc" | awk -v f="$file" '$2 == f { print $1 }')
    [ -n "$sum" ] || die "$base/sha256sums.asc has no checksum of $file"
    echo "$sum  $dir/$file.part" | sha256sum --check --status || {
      rm -f "$dir/$file.part"
      die "$file has not the checksum that $base/sha256sums.asc gives; it was deleted"
    }
    mv "$dir/$file.part" "$dir/$file"
  }
  source=$dir/$file
}

if [ ! -e "$source" ]; then
  [[ $source =~ ^[0-9]+\.[0-9]+(\.[0-9]+)?$ ]] ||
    die "$source is no file, no directory and no version (such as 5.4.31)"
  fetch "$source"
fi
from=$(realpath "$source")
if [ -f "$source" ]; then
  from="$from sha256:$(sha256sum "$source" | cut -d' ' -f1)"
  unpacked=$(mktemp -d "$dir/_build/source-XXXXXX")
  trap 'rm -rf "$unpacked"' EXIT
  trap 'exit 130' INT TERM
  say "unpacking $source"
  tar -xf "$source" -C "$unpacked" --strip-components=1 2>"$unpacked.log" ||
    { tail -n 3 "$unpacked.log" >&2; rm -f "$unpacked.log"; die "$source cannot be unpacked: no tarball, cut short, or the disk is full"; }
  rm -f "$unpacked.log"
  source=$unpacked
fi
[ -f "$source/Makefile" ] && [ -f "$source/Kconfig" ] || die "$from holds no kernel's sources (no Makefile and Kconfig at its top)"

# ---- the configuration -------------------------------------------------------------------------

version=$(make -s -C "$source" kernelversion)
[[ $version =~ ^[0-9]+\.[0-9]+ ]] || die "the Makefile of $from gives no kernel version, but '$version'"
build=$dir/_build/linux-$version
mkdir -p "$build"
fragments=(base "$kernel_arch" 9p debug)
if printf '5.10\n%s\n' "$version" | sort -V -C; then
  command -v pahole >/dev/null || die "the types of a kernel from 5.10 on (BTF) are made by pahole: apt-get install dwarves"
  fragments+=(btf)
fi
for fragment in "${fragments[@]}"; do cat "$ci_kernels/config/$fragment.config"; done >"$build/wanted.config"
make_kernel() {
  make -C "$source" O="$build" ARCH="$kernel_arch" CROSS_COMPILE="$cross" "$@" >>"$build/build.log" 2>&1 </dev/null || {
    grep -n -i -m 5 -e 'error[: ]' -e 'not clean' "$build/build.log" >&2
    tail -n 8 "$build/build.log" >&2
    die "linux $version did not build (make $*); the whole log is $build/build.log"
  }
}
: >"$build/build.log"
make_kernel KCONFIG_ALLCONFIG="$build/wanted.config" allnoconfig
left_out=$(grep -e '^CONFIG_' "$build/wanted.config" | grep -v -x -F -f "$build/.config" | tr '\n' ' ' || true)
[ -z "$left_out" ] || say "not in linux $version: $left_out"
for needed in BPF_SYSCALL BPF_EVENTS PERF_EVENTS BLK_DEV_NVME EXT4_FS; do
  grep -q "^CONFIG_$needed=y" "$build/.config" || die "linux $version would have no CONFIG_$needed; see $build/.config"
done

# ---- the build ---------------------------------------------------------------------------------

say "building linux $version for $arch with ${JOBS:-$(nproc)} jobs; log: $build/build.log"
make_kernel -j"${JOBS:-$(nproc)}" "${image##*/}"
cp "$build/$image" "$dir/.linux-$version.$$"
mv "$dir/.linux-$version.$$" "$dir/linux-$version.bz"
echo "$from, $("${cross}gcc" -dumpfullversion), image sha256:$(sha256sum "$dir/linux-$version.bz" | cut -d' ' -f1)" >"$dir/linux-$version.from"
echo "$dir/linux-$version.bz"
