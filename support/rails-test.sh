#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Records a real Rails application under load: Redmine from Debian's packages, with SQLite and puma, in a root of
# its own. Leaves build/rails/redmine.jsonl and .html; fails if fewer than 99 % of the stacks are whole and
# mixed (Ruby and native frames).
#
#     support/rails-test.sh        after support/setup.sh; needs root and the network, the first time some minutes
#
# RAILS_SECONDS (default 15), RAILS_RATE (default 199). The root is kept in the cache.
set -euo pipefail
. "$(dirname "$0")/debian.sh"
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || die "it needs root: debootstrap, chroot, and BPF"
seconds=${RAILS_SECONDS:-15} rate=${RAILS_RATE:-199} suite=bookworm
root=$cache/rails
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')

# In a mount namespace of its own, so that no mount outlives us.
if [ ! -f "$root/done" ]; then
  say "installing Redmine into $root (some minutes, once)"
  rm -rf "$root"
  mkdir -p "$root"
  unshare -m bash -euo pipefail -c '
    root=$1 suite=$2 archive=$3 keyring=$4
    debootstrap --variant=minbase --include=ca-certificates --keyring="$keyring" "$suite" "$root/tree" "$archive"
    cp -r /etc/apt/apt.conf.d/. "$root/tree/etc/apt/apt.conf.d/"
    cp /etc/resolv.conf "$root/tree/etc/" 2>/dev/null || true
    mount -t proc proc "$root/tree/proc"
    export DEBIAN_FRONTEND=noninteractive
    chroot "$root/tree" apt-get -qq update
    chroot "$root/tree" apt-get -qq -y install --no-install-recommends redmine redmine-sqlite puma
    touch "$root/done"
  ' - "$root" "$suite" "$(archive_of "$suite")" "$(keyring)" >"$cache/rails.log" 2>&1 ||
    { tail -n 20 "$cache/rails.log" >&2; die "Redmine could not be installed; the log is $cache/rails.log"; }
fi

mkdir -p build/rails
unshare -m --fork --kill-child bash -euo pipefail -c '
  mount -t proc proc "$1/tree/proc"
  exec chroot "$1/tree" env RAILS_ENV=production RAILS_ETC=/etc/redmine/default HOME=/root LANG=C.UTF-8 \
    sh -c "cd /usr/share/redmine && exec puma -e production -t 4:4 -b tcp://127.0.0.1:$2 config.ru"
' - "$root" "$port" >build/rails/puma.log 2>&1 &
server=$!
load=
# unshare waits for its child whatever else it is told.
trap 'kill -KILL $server $load 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM

python3 - "$port" <<'END_OF_WAIT' || { tail -n 20 build/rails/puma.log >&2; die "Redmine does not answer"; }
import sys, time, urllib.request
for _ in range(300):
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/", timeout=30).read()
        sys.exit()
    except OSError:
        time.sleep(0.2)
sys.exit(1)
END_OF_WAIT

python3 - "$port" <<'END_OF_LOAD' &
import itertools, sys, threading, urllib.request
def visit():
    for path in itertools.cycle(("", "projects", "login", "issues", "activity", "search?q=a", "users/1")):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/{path}", timeout=30).read()
        except OSError:
            pass
for _ in range(2):
    threading.Thread(target=visit).start()
END_OF_LOAD
load=$!
sleep 2

pid=$(python3 -c '
import pathlib, sys
port = sys.argv[1]
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        words = path.read_bytes()
    except OSError:
        continue
    if words.startswith(b"puma ") and port.encode() in words:
        print(path.parent.name)
        break
' "$port")
[ -n "$pid" ] || die "the server is not to be found among the processes"
.venv/bin/rubyunwind record -p "$pid" -r "$rate" -d "$seconds" -o build/rails/redmine.jsonl
.venv/bin/rubyunwind record -p "$pid" -r "$rate" -d 5 -o build/rails/redmine.html
python3 - <<'END_OF_COUNT'
import json, sys
samples = [json.loads(line) for line in open("build/rails/redmine.jsonl")]
samples = [sample for sample in samples if "frames" in sample]
kinds = [{frame["kind"] for frame in sample["frames"]} for sample in samples]
whole = sum(
    sample.get("reason") is None and {"ruby", "native"} <= found for sample, found in zip(samples, kinds)
)
depths = sorted(len(sample["frames"]) for sample in samples)
print(f"{whole} of {len(samples)} stacks whole and mixed; {depths[len(depths) // 2]} frames in the median, {depths[-1]} at most")
sys.exit(not samples or whole < 0.99 * len(samples))
END_OF_COUNT
