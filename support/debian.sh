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

# bare_root FILE SUITE PACKAGES: makes FILE, the tar of a Debian root with these packages (separated by commas), if it
# is not there. $work is for scratch.
bare_root() {
  local file=$1 suite=$2 packages=$3
  [ ! -s "$file" ] || return 0
  say "making $file, once"
  mkdir -p "$(dirname "$file")"
  debootstrap --variant=minbase --include="ca-certificates,$packages" --keyring="$(keyring)" "$suite" "$work/base" \
    "$(archive_of "$suite")" >"$work/debootstrap.log" 2>&1 ||
    { tail "$work/debootstrap.log" >&2; die "debootstrap made no root of $suite"; }
  tar -C "$work/base" -cf "$file.part" .
  mv "$file.part" "$file"
  rm -rf --one-file-system "$work/base"
}

# Copies into a root what the machine has configured for the network: resolver, pip, certificates of its own.
copy_network() {
  local root=$1 certificates=usr/local/share/ca-certificates
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  if [ -f /etc/pip.conf ]; then cp /etc/pip.conf "$root/etc/pip.conf"; fi
  if ls /$certificates/*.crt >/dev/null 2>&1; then
    mkdir -p "$root/$certificates"
    cp /$certificates/*.crt "$root/$certificates/"
    chroot "$root" update-ca-certificates >/dev/null 2>&1
  fi
}

# run_inside ROOT NAME=VALUE... -- WORD...: in a mount namespace of its own (the mounts stay there), chroot into ROOT
# and become that command, with this environment and what configures pip and proxies in ours, and no other.
run_inside() {
  local root=$1 name value given=()
  shift
  while [ "$1" != -- ]; do
    given+=("$1")
    shift
  done
  shift
  mount -t proc proc "$root/proc"
  mount -t sysfs sysfs "$root/sys"
  while IFS='=' read -r name value; do
    case $name in
      PIP_FIND_LINKS) ;; # a directory of this machine
      PIP_* | *_proxy | *_PROXY | SSL_CERT_FILE | SSL_CERT_DIR | REQUESTS_CA_BUNDLE | CURL_CA_BUNDLE)
        given+=("$name=$value") ;;
    esac
  done < <(env)
  exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "${given[@]}" chroot "$root" "$@" </dev/null
}
