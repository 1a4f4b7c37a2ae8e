#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the package as a wheel for an architecture, and prints its path.
#
#     support/build-wheel.sh amd64|arm64 DIR      after support/setup.sh, which gets the tools
#
# The one that this machine has not is built by a cross compiler (Debian: gcc-aarch64-linux-gnu); the BPF
# objects, of every architecture, are in each wheel.
set -euo pipefail
cd "$(dirname "$0")/.."
arch=${1-} dir=${2-}
[ -n "$dir" ] || { echo "usage: $0 amd64|arm64 DIR" >&2; exit 2; }
case $arch in
  amd64) machine=x86_64 ;;
  arm64) machine=aarch64 ;;
  *) echo "$0: no wheels are built for '$arch': amd64 and arm64 only" >&2; exit 2 ;;
esac
build=build/wheel-build options=()
if [ "$(uname -m)" != "$machine" ]; then
  cross=support/cross/$machine.ini
  [ -f "$cross" ] || { echo "$0: no cross build for $arch is set up here: $cross is missing" >&2; exit 1; }
  build=build/wheel-build-$arch
  options=("--config-settings=setup-args=--cross-file=$PWD/$cross")
fi
rm -rf "$dir"
# meson and ninja are found on PATH only, hence the venv's bin.
PATH="$PWD/.venv/bin:$PATH" _PYTHON_HOST_PLATFORM=linux-$machine .venv/bin/pip --disable-pip-version-check wheel -q \
  --no-deps --no-build-isolation --config-settings="build-dir=$build" "${options[@]}" -w "$dir" . </dev/null >&2
echo "$dir"/rubyunwind-*.whl
