#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Lays the package and what it needs into a directory that the guests' Python imports from.
#
#     support/ci-kernels/build-site.sh DIR       after support/setup.sh, which builds the wheel
#
# The guests have Debian 12's Python 3.11, whatever Python is used here: hence binary wheels for that
# version. The dependencies are kept in build/ and fetched again only when pyproject.toml changes.
set -euo pipefail
. "$(dirname "$0")/common.sh"
out=$(realpath -m "$1")
cd "$ci_kernels/../.."

case $(debian_arch) in amd64) machine=x86_64 ;; arm64) machine=aarch64 ;; esac
pip=(.venv/bin/pip --disable-pip-version-check install -q --upgrade --only-binary=:all:
  --python-version 3.11 --implementation cp --abi cp311 --abi abi3 --abi none)
for tag in manylinux2014 manylinux_2_17 manylinux_2_28 manylinux_2_34 manylinux_2_36 linux; do
  pip+=(--platform "${tag}_$machine")
done

exec 8>build/site.lock
flock 8
if [ "$machine" = "$(uname -m)" ]; then
  wheel=$(echo build/wheel/rubyunwind-*.whl)
else
  say "building the package for $(debian_arch)"
  wheel=$(support/build-wheel.sh "$(debian_arch)" "build/wheel-$(debian_arch)")
fi
site=build/site-$machine
want=$(sha256sum pyproject.toml "$0" | sha256sum)
if [ "$(cat "$site.stamp" 2>/dev/null)" != "$want" ]; then
  say "fetching the guests' Python packages"
  rm -rf "$site" "$site.stamp"
  "${pip[@]}" --target "$site" "$wheel" pytest
  rm -rf "$site"/rubyunwind "$site"/rubyunwind-*
  echo "$want" >"$site.stamp"
fi
mkdir -p "$out"
cp -r "$site/." "$out/"
"${pip[@]}" --no-deps --target "$out" "$wheel"
