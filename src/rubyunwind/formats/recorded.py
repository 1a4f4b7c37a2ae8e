# SPDX-License-Identifier: Apache-2.0
"""What comes out of a file that was recorded, whichever of our formats it is in."""

from __future__ import annotations

from dataclasses import dataclass, field

from rubyunwind.formats.registry import Meta
from rubyunwind.profiler.sample import Totals
from rubyunwind.profiler.samples import Samples

__all__ = ["Recorded"]


@dataclass(frozen=True, slots=True)
class Recorded:
    """Samples that were read, with their totals. `notes` say in words what of the file is not in them."""

    samples: Samples = field(default_factory=Samples)
    totals: Totals = field(default_factory=Totals)
    meta: Meta = field(default_factory=Meta)
    notes: tuple[str, ...] = ()
