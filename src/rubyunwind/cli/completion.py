# SPDX-License-Identifier: Apache-2.0
"""`rubyunwind completion`: what makes a shell complete our command line."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import BashComplete, FishComplete, add_completion_class, get_completion_class

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["VARIABLE", "command"]

VARIABLE = "_RUBYUNWIND_COMPLETE"
"""In the environment when a shell asks for completions."""

_SHELLS = ("bash", "zsh", "fish")
# What bash asks for when Tab was pressed again: a list to show, of which nothing is inserted.
_LISTING = "63"


class DescribingBash(BashComplete):
    """Completion in bash that says what the candidates are, where they are only shown."""

    name = "bash"
    source_template = """\
%(complete_func)s() {
    local IFS=$'\\n' response line
    response=$(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD COMP_TYPE=$COMP_TYPE \\
        %(complete_var)s=bash_complete "$1")
    for line in $response; do
        case $line in
            dir,*) COMPREPLY=(); compopt -o dirnames ;;
            file,*) COMPREPLY=(); compopt -o default ;;
            plain,*) COMPREPLY+=("${line#plain,}") ;;
        esac
    done
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def complete(self) -> str:
        """Return a line for each candidate: its type, a comma, and what bash puts in or shows."""
        found = self.get_completions(*self.get_completion_args())
        describe = os.environ.get("COMP_TYPE") == _LISTING and len(found) > 1
        return "\n".join(self._line(item, describe) for item in found)

    def _line(self, item: CompletionItem, describe: bool) -> str:
        text = f"{item.value}  ({item.help})" if describe and item.help else item.value
        return f"{item.type},{text}"


class WholeFish(FishComplete):
    """Completion in fish with all of a description or of a file's name; click's ends at the first comma."""

    name = "fish"
    source_template = """\
function %(complete_func)s
    for line in (env COMP_WORDS=(commandline -cp) COMP_CWORD=(commandline -t) \\
            %(complete_var)s=fish_complete %(prog_name)s)
        set -l found (string split -m 1 , -- $line)
        switch $found[1]
            case dir
                __fish_complete_directories $found[2]
            case file
                __fish_complete_path $found[2]
            case plain
                echo $found[2]
        end
    end
end
complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""

    def format_completion(self, item: CompletionItem) -> str:
        """Return a candidate's type, a comma, and what fish takes: the value, a tab and the description."""
        found = f"{item.type},{item.value}"
        # A line each, of which a tab begins the description.
        return f"{found}\t{' '.join(item.help.splitlines())}" if item.help else found


add_completion_class(DescribingBash)
add_completion_class(WholeFish)


@click.command("completion", short_help="have a shell complete this command line")
@click.argument("shell", type=click.Choice(_SHELLS))
def command(shell: str) -> None:
    """Print a script that has SHELL complete verbs, options, formats, files, and the pids of Rubies.

    \b
    bash   eval "$(rubyunwind completion bash)"         in ~/.bashrc
    zsh    eval "$(rubyunwind completion zsh)"          in ~/.zshrc, after compinit
    fish   rubyunwind completion fish | source          in ~/.config/fish/config.fish
    """
    from rubyunwind.cli.main import cli

    found: Any = get_completion_class(shell)
    click.echo(found(cli, {}, "rubyunwind", VARIABLE).source())
