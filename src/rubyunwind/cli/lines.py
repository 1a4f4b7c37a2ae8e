# SPDX-License-Identifier: Apache-2.0
"""`rubyunwind lines`: what a byte-code address of a Ruby process or core file is in the source."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from rubyunwind.cli.candidates import complete_file, complete_ruby
from rubyunwind.cli.text import printable
from rubyunwind.errors import AttachError
from rubyunwind.ruby.detect import find_ruby
from rubyunwind.ruby.translate import CodeLine, line_of

if TYPE_CHECKING:
    from rubyunwind.process.image import ProcessImage

__all__ = ["command"]


@click.command("lines", short_help="the source line of a byte-code address")
@click.option("-p", "--pid", type=int, shell_complete=complete_ruby, help="Process that has the code.")
@click.option(
    "--core",
    shell_complete=complete_file,
    help="Core file that has the code, plain or compressed (gzip, zstd).",
)
@click.option(
    "--sysroot",
    shell_complete=complete_file,
    help="Where the files are that the core's process had mapped. Default: /",
)
@click.option("--ec", help="Address of an execution context, for a Ruby that hides it.")
@click.option(
    "--offset", type=int, help="Instead of PC: VALUEs from the start of the code, as disasm prints."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.argument("iseq_body")
@click.argument("pc", required=False)
def command(
    pid: int | None,
    core: str | None,
    sysroot: str | None,
    ec: str | None,
    offset: int | None,
    as_json: bool,
    iseq_body: str,
    pc: str | None,
) -> None:
    """Print path, line and label of a byte-code address.

    ISEQ_BODY and PC are hexadecimal, as a trace's Ruby frames have them: the address of an instruction
    sequence's body, and the program counter in it.
    """
    if (pid is None) == (core is None):
        raise click.UsageError("name a process (-p PID) or a core file (--core FILE), one of them")
    if (pc is None) == (offset is None):
        raise click.UsageError("give a PC or --offset, one of them")
    body, context = _address(iseq_body), _address(ec) if ec is not None else 0
    position = _address(pc) if pc is not None else None
    with ExitStack() as stack:
        image = _open(stack, pid, core, sysroot)
        found = _translate(image, context, body, position, offset)
    if as_json:
        import json

        click.echo(json.dumps({"path": found.path, "line": found.line, "label": found.label}))
        return
    click.echo(f"{printable(found.path)}:{found.line} {printable(found.label)}")


def _address(text: str) -> int:
    """Read a hexadecimal address, with or without 0x; a usage error for what is none."""
    try:
        number = int(text, 16)
    except ValueError:
        number = -1
    if not 0 <= number < 1 << 64:
        raise click.UsageError(f"{text!r} is no hexadecimal address such as 0x7f12a4005010")
    return number


def _open(stack: ExitStack, pid: int | None, core: str | None, sysroot: str | None) -> ProcessImage:
    from rubyunwind.process.core import CoreFile
    from rubyunwind.process.identity import check_attachable
    from rubyunwind.process.image import CoreProcess, LiveProcess

    if core is not None:
        return stack.enter_context(CoreProcess(CoreFile.open(core, sysroot)))
    assert pid is not None
    check_attachable(pid)
    return stack.enter_context(LiveProcess(pid))


def _translate(
    image: ProcessImage, context: int, iseq_body: int, pc: int | None, offset: int | None
) -> CodeLine:
    runtime = find_ruby(image.pid, image.mappings(), image.memory, open_elf=image.open, context=context)
    if runtime is None:
        raise AttachError(f"no Ruby was found in process {image.pid}: there is no byte code in it")
    return line_of(image.memory, runtime, iseq_body, pc=pc, offset=offset)
