# SPDX-License-Identifier: Apache-2.0
"""Samples running Ruby programs from the outside: kernel, native, C-function and Ruby frames in one stack.

This module only gathers the public names. The ABI and the errors are here at once; what needs libbpf, ELF
files or a running profile is imported when its name is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rubyunwind import abi
from rubyunwind.abi import *  # noqa: F403
from rubyunwind.abi.constants import *  # noqa: F403
from rubyunwind.errors import (
    AttachError,
    BpfError,
    DecodeError,
    NotSupported,
    RubyUnwindError,
    UnsupportedRuby,
)

if TYPE_CHECKING:
    from rubyunwind.bpf.features import features
    from rubyunwind.bpf.lifetime import LifetimeError
    from rubyunwind.bpf.spec import load_collection_spec
    from rubyunwind.profiler.off_cpu import OffCPU
    from rubyunwind.profiler.profiler import Profiler
    from rubyunwind.profiler.recording import Profile, Recording, record
    from rubyunwind.profiler.sample import Sample, Totals
    from rubyunwind.profiler.samples import Samples
    from rubyunwind.profiler.snapshot import snapshot
    from rubyunwind.profiler.user_profiler import UserProfiler
    from rubyunwind.push.endpoint import Endpoint
    from rubyunwind.push.exporter import Exporter
    from rubyunwind.push.pushed import Pushed

    __version__: str

__all__ = [
    "AttachError",
    "BpfError",
    "DecodeError",
    "Endpoint",
    "Exporter",
    "LifetimeError",
    "NotSupported",
    "OffCPU",
    "Profile",
    "Profiler",
    "Pushed",
    "Recording",
    "RubyUnwindError",
    "Sample",
    "Samples",
    "Totals",
    "UnsupportedRuby",
    "UserProfiler",
    "__version__",
    "features",
    "load_collection_spec",
    "record",
    "snapshot",
]
__all__ += abi.__all__

# Public names that cost something to import, and the modules they live in.
_LAZY = {
    "Endpoint": "rubyunwind.push.endpoint",
    "Exporter": "rubyunwind.push.exporter",
    "LifetimeError": "rubyunwind.bpf.lifetime",
    "OffCPU": "rubyunwind.profiler.off_cpu",
    "Profile": "rubyunwind.profiler.recording",
    "Profiler": "rubyunwind.profiler.profiler",
    "Pushed": "rubyunwind.push.pushed",
    "Recording": "rubyunwind.profiler.recording",
    "Sample": "rubyunwind.profiler.sample",
    "Samples": "rubyunwind.profiler.samples",
    "Totals": "rubyunwind.profiler.sample",
    "UserProfiler": "rubyunwind.profiler.user_profiler",
    "features": "rubyunwind.bpf.features",
    "load_collection_spec": "rubyunwind.bpf.spec",
    "record": "rubyunwind.profiler.recording",
    "snapshot": "rubyunwind.profiler.snapshot",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def _version() -> str:
    """Return the version that pyproject.toml had when the package was built."""
    from importlib import metadata  # 60 ms: only when somebody asks

    try:
        version = metadata.version("rubyunwind")
    except metadata.PackageNotFoundError:  # imported from a source tree
        version = "0+unknown"
    globals()["__version__"] = version
    return version


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
