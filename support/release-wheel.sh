#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds a wheel that can be given away: with a copy of libbpf for systems that have none, and tagged for the
# oldest Python and glibc that it runs on. Prints its path.
#
#     support/release-wheel.sh amd64|arm64 DIR      after support/setup.sh cross release
#
# The copy is Debian's, from the packages libbpf1 and libelf1 of the suite that is named below.
set -euo pipefail
. "$(dirname "$0")/debian.sh"
cd "$(dirname "$0")/.."
arch=${1-} dir=${2-} suite=bookworm
[ -n "$dir" ] || { echo "usage: $0 amd64|arm64 DIR" >&2; exit 2; }
wheel=$(support/build-wheel.sh "$arch" "build/wheel-for-$arch")

# Kept in build/; `make clean` has them fetched anew.
tree=$PWD/build/libbpf-$arch
if [ ! -s "$tree.versions" ]; then
  say "getting Debian's libbpf for $arch"
  rm -rf "$tree" "$tree.apt"
  mkdir -p "$tree" "$tree.apt"
  own_apt "$tree.apt" "$arch" "$suite"
  apt-get "${apt_options[@]}" -qq update
  (cd "$tree.apt" && apt-get "${apt_options[@]}" -qq download libbpf1 libelf1)
  for deb in "$tree.apt"/*.deb; do dpkg-deb -x "$deb" "$tree"; done
  for deb in "$tree.apt"/*.deb; do
    dpkg-deb -W --showformat='${Package} ${Version} (source package ${source:Package} ${source:Version})\n' "$deb"
  done >"$tree.versions.part"
  rm -rf "$tree.apt"
  mv "$tree.versions.part" "$tree.versions"
fi
.venv/bin/python support/bundle_libbpf.py "$wheel" "$tree" "$dir"
