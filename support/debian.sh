# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034,SC2016
# Sourced by scripts that get packages of Debian, whatever suite they are in.

cache=${XDG_CACHE_HOME:-$HOME/.cache}/rubyunwind

say() { echo "${0##*/}: $*" >&2; }
die() { say "$@"; exit 1; }

# The archive that a suite is in, taken from the machine's own apt sources, so that a mirror or a
# proxy that is set up there is used here too.
archive_of() {
  local suite=$1 uris main security
  command -v apt-get >/dev/null || die "apt-get is needed to find Debian packages"
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

# own_apt DIR ARCH SUITE...: prepares DIR and sets $apt_options, with which apt-get and apt-cache know those suites
# only and keep lists and packages in DIR, so that the machine's are not touched.
own_apt() {
  local dir=$1 arch=$2 suite key archive
  shift 2
  key=$(keyring)
  mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
  : >"$dir/status"
  : >"$dir/sources.list"
  for suite; do
    archive=$(archive_of "$suite")
    echo "deb [signed-by=$key arch=$arch] $archive $suite main" >>"$dir/sources.list"
  done
  # Signatures are checked, dates are not: a suite that has been archived has an old one for good.
  apt_options=(
    -o "APT::Architecture=$arch" -o "APT::Architectures::=$arch" -o APT::Sandbox::User=root
    -o "Dir::State=$dir" -o "Dir::State::lists=$dir/lists" -o "Dir::State::status=$dir/status"
    -o "Dir::Cache=$dir/cache" -o "Dir::Etc::sourcelist=$dir/sources.list" -o Dir::Etc::sourceparts=-
    -o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false
    -o Acquire::Check-Valid-Until=false
  )
}
