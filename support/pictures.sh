#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Takes the pictures in docs/ anew, of a program that runs for them: `make picture` does so. Takes half a minute.
#
#     support/pictures.sh PAGE.html      PAGE.html is the flame graph of `make demo`
#
# After support/setup.sh page; needs root, or what else lets rubyunwind record.
set -euo pipefail
cd "$(dirname "$0")/.."
docs=$PWD/docs work=build/demo
python=$PWD/.venv/bin/python rubyunwind=$PWD/.venv/bin/rubyunwind
page() { "$python" support/picture.py "$@"; }
# In that directory, so that commands are short.
terminal() { (script=$PWD/support/terminal_picture.py && cd "$work" && exec "$python" "$script" "$@"); }
say() { echo "pictures: $*" >&2; }

say "the flame graph"
page "$1" "$docs/flame-graph.png"

say "a document without tables, and the same with them"
"$python" support/demo_document.py "$work/plain.adoc" 6000 no-tables
"$python" support/demo_document.py "$work/tables.adoc"
for name in plain tables; do
  (cd "$work" && "$rubyunwind" record -r 199 -o "$name.rubyunwind" -- asciidoctor "$name.adoc")
done
# Without the start of Ruby, which is not what has changed.
"$rubyunwind" report --diff "$work/plain.rubyunwind" "$work/tables.rubyunwind" --from 0.5 -o "$work/difference.html"
page "$work/difference.html" "$docs/difference.png" 620 native=off

say "lines of source"
terminal "$docs/lines.svg" 80x60 30 "$rubyunwind" report --lines --file substitutors.rb -n 6 plain.rubyunwind

say "top"
"$python" support/demo_document.py "$work/long.adoc" 30000
terminal "$docs/top.svg" 80x24 12 "$rubyunwind" top -- asciidoctor -o /dev/null long.adoc
