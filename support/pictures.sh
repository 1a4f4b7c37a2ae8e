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
work=build/demo
python=.venv/bin/python
rubyunwind() { .venv/bin/rubyunwind "$@"; }
terminal() { PATH="$PWD/.venv/bin:$PATH" "$python" support/terminal_picture.py "$@"; }
say() { echo "pictures: $*" >&2; }

say "the flame graph"
"$python" support/picture.py "$1" docs/flame-graph.png

say "a document without tables, and the same with them"
"$python" support/demo_document.py "$work/plain.adoc" 6000 no-tables
"$python" support/demo_document.py "$work/document.adoc"
for document in plain document; do
  rubyunwind record -r 199 -o "$work/$document.rubyunwind" -- asciidoctor -o /dev/null "$work/$document.adoc"
done
rubyunwind report --diff "$work/plain.rubyunwind" "$work/document.rubyunwind" -o "$work/difference.html"
"$python" support/picture.py "$work/difference.html" docs/difference.png

say "lines of source"
terminal docs/lines.svg 80x60 30 rubyunwind report --lines --file substitutors.rb -n 7 "$work/document.rubyunwind"

say "top"
"$python" support/demo_document.py "$work/long.adoc" 30000
terminal docs/top.svg 80x24 12 rubyunwind top -- asciidoctor -o /dev/null "$work/long.adoc"
