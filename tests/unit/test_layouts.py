# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest

from rubyunwind.errors import UnsupportedRuby
from rubyunwind.ruby.layouts import find_layout, parse_version, version_number
from rubyunwind.ruby.layouts.layout import Layout
from rubyunwind.ruby.layouts.series import LAST_PATCH, PATCHES, SERIES

# Offsets computed from the structs of each release tag on x86_64, independently of the registry's chain of
# changes: ec.thread_ptr, sizeof cfp, cfp.jit_return, insns_info body and size, succinct table, parent_iseq,
# local_iseq, sizeof insn entry, line in it, embedded string, last operator id, running_ec, thread.ec,
# vm.objspace.
COLUMNS = (
    "ec_thread_ptr",
    "cfp_size",
    "cfp_jit_return",
    "body_insns_info",
    "body_insns_info_size",
    "body_succ_index_table",
    "body_parent_iseq",
    "body_local_iseq",
    "insn_entry_size",
    "insn_entry_line",
    "string_embedded",
    "last_operator_id",
    "ractor_running_ec",
    "thread_ec",
    "vm_objspace",
)
TABLE = {
    "2.5.0": (72, 48, None, 112, 200, None, 136, 144, 12, 4, 16, 166, None, 32, 1168),
    "2.5.3": (72, 48, None, 112, 200, None, 136, 144, 12, 4, 16, 166, None, 32, 1168),
    "2.5.4": (72, 48, None, 112, 200, None, 136, 144, 12, 4, 16, 166, None, 32, 1176),
    "2.5.9": (72, 48, None, 112, 200, None, 136, 144, 12, 4, 16, 166, None, 32, 1176),
    "2.6.0": (56, 56, None, 120, 136, 144, 168, 176, 8, 0, 16, 164, None, 32, 1224),
    "2.6.10": (56, 56, None, 120, 136, 144, 168, 176, 8, 0, 16, 164, None, 32, 1224),
    "2.7.0": (56, 56, None, 120, 136, 144, 168, 176, 8, 0, 16, 168, None, 32, 1152),
    "2.7.8": (56, 56, None, 120, 136, 144, 168, 176, 8, 0, 16, 168, None, 32, 1152),
    "3.0.0": (56, 56, None, 120, 136, 144, 168, 176, 8, 0, 16, 168, 520, 40, 1088),
    "3.0.7": (56, 56, None, 120, 136, 144, 168, 176, 8, 0, 16, 168, 520, 40, 1088),
    "3.1.0": (48, 64, 56, 120, 136, 144, 168, 176, 12, 0, 16, 169, 520, 40, 1104),
    "3.1.2": (48, 64, 56, 120, 136, 144, 168, 176, 12, 0, 16, 169, 520, 40, 1104),
    "3.1.5": (48, 64, 56, 120, 136, 144, 168, 176, 12, 0, 16, 169, 520, 40, 1112),
    "3.2.0": (48, 64, 56, 112, 128, 136, 160, 168, 12, 0, 24, 169, 520, 48, 1128),
    "3.2.3": (48, 64, 56, 112, 128, 136, 160, 168, 12, 0, 24, 169, 520, 48, 1136),
    "3.2.11": (48, 64, 56, 112, 128, 136, 160, 168, 12, 0, 24, 169, 520, 48, 1144),
    "3.3.0": (48, 56, 48, 112, 128, 136, 160, 168, 12, 0, 24, 169, 384, 48, 1304),
    "3.3.12": (48, 56, 48, 112, 128, 136, 160, 168, 12, 0, 24, 169, 384, 48, 1304),
    "3.4.0": (48, 56, 48, 112, 128, 136, 160, 168, 12, 0, 24, 170, 384, 48, 1296),
    "3.4.10": (48, 56, 48, 112, 128, 136, 160, 168, 12, 0, 24, 170, 384, 48, 1296),
    "4.0.0": (48, 56, 48, 112, 128, 136, 168, 176, 12, 0, 24, 171, 312, 48, 1248),
    "4.0.5": (48, 56, 48, 112, 128, 136, 168, 176, 12, 0, 24, 171, 312, 48, 1248),
    "4.0.6": (48, 56, 48, 112, 128, 136, 168, 176, 12, 0, 24, 171, 320, 48, 1256),
}


@pytest.mark.parametrize("version", TABLE)
def test_registry_gives_the_offsets_of_each_release(version: str) -> None:
    match = find_layout(version)
    assert match.exact
    assert match.version == version
    assert tuple(getattr(match.layout, column) for column in COLUMNS) == TABLE[version]


def test_what_never_changed_is_the_same_everywhere() -> None:
    same = (
        "ec_vm_stack",
        "ec_vm_stack_size",
        "ec_cfp",
        "cfp_pc",
        "cfp_iseq",
        "cfp_self",
        "cfp_ep",
        "iseq_body",
        "body_type",
        "body_iseq_size",
        "body_iseq_encoded",
        "body_location",
        "location_pathobj",
        "location_base_label",
        "location_label",
        "ment_def",
        "ment_owner",
        "def_original_id",
    )
    expected = (0, 8, 16, 0, 16, 24, 32, 16, 0, 4, 8, 64, 0, 8, 16, 16, 32, 32)
    for layout in SERIES.values():
        assert tuple(getattr(layout, name) for name in same) == expected, layout.name


def test_class_paths_are_where_3_3_and_4_0_have_them() -> None:
    assert find_layout("3.2.11").layout.class_classpath is None
    for version, classpath, attached, flag in (
        ("3.3.0", 152, 128, 1 << 12),
        ("3.4.0", 152, 128, 1 << 13),
        ("4.0.0", 152, 136, 1 << 13),
    ):
        layout = find_layout(version).layout
        assert layout.class_classpath == classpath
        assert layout.class_attached_object == attached
        assert layout.class_singleton_flag == flag


@pytest.mark.parametrize(
    ("version", "running_ec"), [("3.1.2", 0x218), ("3.3.8", 0x190), ("4.0.5", 0x148), ("4.0.6", 0x150)]
)
def test_aarch64_differs_behind_mutexes(version: str, running_ec: int) -> None:
    arm = find_layout(version, aarch64=True).layout
    intel = find_layout(version).layout
    assert arm.ractor_running_ec == running_ec
    assert arm.vm_objspace == intel.vm_objspace + 24
    assert arm.ec_thread_ptr == intel.ec_thread_ptr


def test_aarch64_before_ractors_has_no_running_ec() -> None:
    assert find_layout("2.7.4", aarch64=True).layout.ractor_running_ec is None


def test_patch_changes_name_members_that_exist() -> None:
    members = set(Layout.__dataclass_fields__)
    for series, changes in PATCHES.items():
        assert series in SERIES
        patches = [patch for patch, _ in changes]
        assert patches == sorted(patches)
        for patch, moved in changes:
            assert patch <= LAST_PATCH[series]
            assert set(moved) <= members


@pytest.mark.parametrize(
    ("version", "nearest"),
    [("3.4.99", "3.4.11"), ("3.1.8", "3.1.7"), ("4.0.7", "4.0.6"), ("3.3.0dev", "3.3.0")],
)
def test_an_unknown_release_of_a_known_series_is_a_guess_at_the_nearest(version: str, nearest: str) -> None:
    match = find_layout(version)
    assert not match.exact
    assert match.version == nearest
    assert match.layout == find_layout(nearest).layout


@pytest.mark.parametrize(
    ("version", "nearest"),
    [
        ("2.4.10", "2.5.0"),
        ("1.9.3", "2.5.0"),
        ("3.5.0dev", "3.4.11"),
        ("4.1.0-preview1", "4.0.6"),
        ("5.0.0", "4.0.6"),
    ],
)
def test_an_unknown_series_is_refused_and_the_nearest_named(version: str, nearest: str) -> None:
    with pytest.raises(UnsupportedRuby) as caught:
        find_layout(version)
    assert caught.value.found == version
    assert caught.value.nearest == nearest
    assert version in str(caught.value)
    assert "2.5 to 4.0" in str(caught.value)


@pytest.mark.parametrize("version", ["", "ruby", "3", "3.1", "3.x.1", "\0\0", "3.1.99999"])
def test_text_that_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(UnsupportedRuby, match="no Ruby version"):
        find_layout(version)


def test_version_numbers_have_a_byte_for_each_part() -> None:
    assert version_number(parse_version("3.1.2")) == 0x30102
    assert version_number(parse_version("3.3.10")) == 0x3030A
    assert version_number((3, 4, 999)) == 0x304FF
