# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
# Sourced by the scripts beside it, which make a root with a Ruby, or print the one that is there.

ci_rubies=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$ci_rubies/../debian.sh"
skip() { echo "skipped: $*" >&2; exit 77; }

# row_of LIST NAME: the words behind NAME in LIST, a file beside us; nothing if it is not there.
row_of() { awk -v name="$2" '$1 == name { $1 = ""; print }' "$ci_rubies/$1"; }

# asked LIST [--refresh] NAME: sets $name, the words behind it in LIST ($row), and $refresh.
asked() {
  local list=$1 known
  shift
  refresh=""
  if [ "${1-}" = --refresh ]; then
    refresh=yes
    shift
  fi
  name=${1-}
  known=$(awk '!/^#/ { printf "%s%s", separator, $1; separator = " " }' "$ci_rubies/$list")
  [ -n "$name" ] || die "usage: $0 [--refresh] NAME; known: $known"
  read -ra row < <(row_of "$list" "$name") || die "ruby $name is not in $ci_rubies/$list; known: $known"
}

# print_cached DIR: locks $name in DIR, so that two runs at once make one root, and if one of it is there that will do,
# prints the newest and exits.
print_cached() {
  local newest
  mkdir -p "$1"
  exec 8>"$1/$name.lock"
  flock 8
  newest=$(find "$1" -maxdepth 1 -type d -name "$name-[0-9]*" | sort -V | tail -n 1)
  if [ -n "$newest" ] && [ -z "$refresh" ]; then
    echo "$newest"
    exit
  fi
}

# make_work DIR: makes $work, which is gone when the script is. It is on the file system of the cache, so that the
# root appears there at once and whole.
make_work() {
  # What a killed run left goes.
  rm -rf "$1/.work-$name".*
  work=$(mktemp -d "$1/.work-$name.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  trap 'exit 130' INT TERM HUP
}

# with_packages ARCH SUITE...: has `apt` see the packages of those suites only.
with_packages() {
  die() { skip "ruby $name: $*"; } # of what own_apt needs
  own_apt "$work/apt" "$@"
}

# apt PROGRAM WORD...: apt-get or apt-cache with those suites; `why` is what it said when it failed.
apt() { "$1" "${apt_options[@]}" -qq "${@:2}" 2>"$work/errors"; }
why() { sed -n 's/^[EW]: //p' "$work/errors" | sed -n 1p; }

# Makes the directories of $work/root; programs of the tests go into one of them.
lay_root() {
  local dir
  for dir in bin sbin lib lib64; do
    mkdir -p "$work/root/usr/$dir"
    ln -s "usr/$dir" "$work/root/$dir"
  done
  mkdir "$work/root/tmp" "$work/root/programs"
}
