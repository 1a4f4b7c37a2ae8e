# SPDX-License-Identifier: Apache-2.0
"""The BTF inside each built object against the cffi types that the Python side is made from."""

from __future__ import annotations

import pytest
from architectures import ARCHITECTURES, KINDS, definitions, fields_of, object_bytes

from rubyunwind.bpf.btf import Btf
from rubyunwind.bpf.objectfile import ObjectFile

# A type that no program uses is not in BTF; what user space exchanges with the programs has to be.
STRUCTS = (
    "ApmIntProcInfo", "DotnetProcInfo", "Event", "Frame", "OffsetRange", "PHPProcInfo", "PIDPage",
    "PIDPageMappingInfo", "PerCPURecord", "RubyProcInfo", "RubyTLSInfo", "RubyUnwindState", "RubyVMInfo",
    "StackDelta", "StackDeltaPageInfo", "StackDeltaPageKey", "SystemConfig", "Trace", "UnwindInfo",
    "UnwindState",
)  # fmt: skip
ENUMS = (
    "Counter", "ErrorCode", "EventType", "FrameMarker", "MetricID", "ProgUnwind", "RatelimitAction",
    "FollowFlag", "OffCPURoom", "RubyTLSKind", "TraceFlag", "TraceOrigin", "UnwindCommand", "UnwindOpcode",
)  # fmt: skip
OBJECTS = [(kind, arch) for kind in KINDS for arch in ARCHITECTURES]


def btf_of(kind: str, arch: str) -> Btf:
    section = ObjectFile.parse(object_bytes(kind, arch)).find(".BTF")
    assert section is not None
    return Btf.parse(bytes(section.data))


@pytest.mark.parametrize(("kind", "arch"), OBJECTS)
def test_every_exchanged_struct_and_enum_is_in_the_objects_btf(kind: str, arch: str) -> None:
    btf = btf_of(kind, arch)
    assert set(STRUCTS) <= set(btf.layouts())
    assert set(ENUMS) <= set(btf.enums())


@pytest.mark.parametrize(("kind", "arch"), OBJECTS)
def test_structs_of_the_object_have_cffis_sizes_and_offsets(kind: str, arch: str) -> None:
    ffi, compared, wrong = definitions(arch), set(), {}
    for name, layout in btf_of(kind, arch).layouts().items():
        try:
            ffi.typeof(name)
        except Exception:  # a struct of the kernel or of the programs' own
            continue
        ours = (ffi.sizeof(name), {field: offset for field, offset, _ in fields_of(ffi, name)})
        if ours != (layout.size, dict(layout.offsets)):
            wrong[name] = (ours, layout)
        compared.add(name)
    assert not wrong
    assert set(STRUCTS) <= compared


@pytest.mark.parametrize(("kind", "arch"), OBJECTS)
@pytest.mark.parametrize("name", ENUMS)
def test_enums_of_the_object_have_cffis_values(kind: str, arch: str, name: str) -> None:
    assert btf_of(kind, arch).enums()[name] == definitions(arch).typeof(name).relements


def test_the_comparison_sees_the_other_architectures_layout() -> None:
    layout = btf_of("release", "arm64").layouts()["UnwindState"]
    assert layout.size == definitions("arm64").sizeof("UnwindState")
    assert layout.size != definitions("amd64").sizeof("UnwindState")
