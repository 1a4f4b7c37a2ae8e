# SPDX-License-Identifier: Apache-2.0
"""`rubyunwind doctor`: what works here, what is missing, and what to change."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict

import click

from rubyunwind.bpf.features import CO_RE, LEGACY, NO, UNKNOWN, YES
from rubyunwind.profiler.diagnosis import Diagnosis, diagnose

__all__ = ["command", "report"]


# What a missing feature means, by the flavours that need it.
_WITHOUT: dict[tuple[str, ...], str] = {
    (CO_RE,): "the legacy programs work without",
    (LEGACY,): "the co-re programs work without",
}


@click.command("doctor", short_help="what works here, what is missing")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("-v", "--verbose", is_flag=True, help="List also what is there.")
def command(as_json: bool, verbose: bool) -> None:
    """Say what works on this machine for this user, by trying it, and what to change.

    Exit status 0 when programs can be sampled by BPF, 1 when only the user backend is left.
    """
    found = diagnose()
    if as_json:
        import json

        click.echo(json.dumps(asdict(found)))
    else:
        click.echo("\n".join(report(found, verbose)))
    sys.exit(0 if found.backend == "bpf" else 1)


def report(found: Diagnosis, verbose: bool = False) -> Iterator[str]:
    """Yield the lines of the report; features that are there are counted, or listed when `verbose`."""
    # What somebody wants to know, and to do, before the details.
    if found.backend == "bpf":
        yield "rubyunwind can sample with BPF here: " + (
            "with less than it could" if found.advice else "nothing is missing"
        )
    else:
        yield "rubyunwind cannot sample with BPF here; record falls back to user space: Ruby frames only"
    if found.advice:
        yield "to change"
        for sentence in found.advice:
            yield f"  - {sentence}"
    yield ""
    yield f"kernel      {found.kernel} {found.machine}"
    loaded = f"loaded in {found.load_ms:.0f} ms" if found.load_ms is not None else "not loaded"
    yield f"programs    {found.flavour}, {loaded}"
    yield f"backend     {found.backend}"
    if found.refusal:
        yield f"            because {found.refusal}"
    there = [feature for feature in found.features if feature.answer == YES]
    yield f"features    {len(there)} of {len(found.features)}"
    unknown = Counter(feature.detail for feature in found.features if feature.answer == UNKNOWN)
    for feature in found.features:
        if verbose or feature.answer == NO or feature.name == "libbpf":
            optional = "" if feature.required else f", {_WITHOUT.get(feature.needed_by, 'works without')}"
            detail = f": {feature.detail}" if feature.detail else ""
            yield f"  {feature.answer:7}   {feature.name} ({feature.needs}{optional}){detail}"
    if not verbose:
        for detail, count in unknown.items():
            yield f"  {UNKNOWN:7}   {count} of them: {detail}"
    yield "rights"
    for right in found.rights:
        yield f"  {'yes' if right.held else 'no':7}   {right.name}: {right.gives}"
    yield "limits"
    for name, value in found.limits.items():
        yield f"            {name} = {value}"
