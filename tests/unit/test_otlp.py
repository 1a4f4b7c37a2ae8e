# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from format_readers import read_otlp, written
from profile_strategies import HOSTILE_NAMES

from rubyunwind.formats import Meta
from rubyunwind.profiler.sample import Frame, Sample, Totals

STARTED = 1_700_000_000_000_000_000
META = Meta("a title", "ruby a.rb", STARTED, 2.5, 99.0, ("ruby 3.1.2",))
A = Frame("ruby", "a", path="/a.rb", line=1)


@pytest.fixture
def _needs_the_extra() -> None:
    pytest.importorskip("opentelemetry.proto", reason="opentelemetry-proto is not installed")


def strings_of(data: object, *indices: int) -> list[str]:
    return [data.dictionary.string_table[index] for index in indices]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("_needs_the_extra")
class TestMessage:
    def test_time_duration_and_period_are_those_of_the_recording(self) -> None:
        data = read_otlp(written("otlp", [Sample(STARTED + 5, 1, 1, "ruby", (A,))], meta=META)).data
        [profile] = data.resource_profiles[0].scope_profiles[0].profiles
        assert (profile.time_unix_nano, profile.duration_nano) == (STARTED, 2_500_000_000)
        assert profile.period == 10_101_010
        type_, period = profile.sample_type, profile.period_type
        assert strings_of(data, type_.type_strindex, type_.unit_strindex) == ["samples", "count"]
        assert strings_of(data, period.type_strindex, period.unit_strindex) == ["cpu", "nanoseconds"]

    def test_a_resource_is_a_container_and_a_profile_a_unit(self) -> None:
        data = read_otlp(
            written(
                "otlp",
                [
                    Sample(STARTED, 1, 1, "ruby", (A,)),
                    Sample(STARTED, 1, 1, "ruby", (A,), unit="ns", weight=500),
                    Sample(STARTED, 2, 2, "ruby", (A,), container="c0ffee"),
                ],
            )
        ).data
        resources = data.resource_profiles
        assert [
            [(pair.key, pair.value.string_value) for pair in each.resource.attributes] for each in resources
        ] == [[], [("container.id", "c0ffee")]]
        assert [len(each.scope_profiles[0].profiles) for each in resources] == [2, 1]

    def test_samples_of_one_stack_and_thread_are_one_with_all_times(self) -> None:
        some = [Sample(STARTED + number, 1, 1, "ruby", (A,), weight=2) for number in range(3)]
        data = read_otlp(written("otlp", some)).data
        [sample] = data.resource_profiles[0].scope_profiles[0].profiles[0].samples
        assert list(sample.values) == [2, 2, 2]
        assert list(sample.timestamps_unix_nano) == [STARTED, STARTED + 1, STARTED + 2]

    def test_kinds_are_attributes_of_locations(self) -> None:
        frames = (Frame("kernel", "k"), Frame("native", "n", module="/n.so"), Frame("cfunc", "c"), A)
        data = read_otlp(written("otlp", [Sample(1, 1, 1, "ruby", frames, False, "limit")])).data
        found = []
        for location in data.dictionary.location_table[1:]:
            rows = [data.dictionary.attribute_table[index] for index in location.attribute_indices]
            found.append({*strings_of(data, *(row.key_strindex for row in rows))})
        kind, type_ = "rubyunwind.frame.kind", "profile.frame.type"
        assert found == [{kind}, {kind, type_}, {kind, type_}, {kind, type_}, {kind, type_}]

    def test_an_empty_profile_is_whole_and_says_so(self) -> None:
        read = read_otlp(written("otlp", [], Totals(lost=3, failed=(("limit", 2),)), META))
        assert not read.stacks
        scope = read.data.resource_profiles[0].scope_profiles[0]
        [profile] = scope.profiles
        assert strings_of(read.data, profile.sample_type.type_strindex) == ["samples"]
        summary = scope.scope.attributes[0].value.string_value
        assert "no samples; samples: 0 read, 0 truncated, 3 lost; incomplete or unsent" in summary
        rows = [read.data.dictionary.attribute_table[index] for index in profile.attribute_indices]
        totals = {strings_of(read.data, row.key_strindex)[0]: row.value.int_value for row in rows}
        assert totals == {
            "rubyunwind.samples.read": 0,
            "rubyunwind.samples.lost": 3,
            "rubyunwind.samples.truncated": 0,
            "rubyunwind.samples.failed.limit": 2,
        }

    @pytest.mark.parametrize("name", HOSTILE_NAMES)
    def test_any_name_can_be_read_back(self, name: str) -> None:
        frames = (Frame("ruby", name, path=name, line=1), Frame("native", name, module=name))
        totals = Totals(failed=((name, 1),))
        sample = Sample(1, 1, 1, name, frames, container=name)
        [key] = read_otlp(written("otlp", [sample], totals, Meta(name, name))).stacks
        assert [shown.name for shown in key.stack] == [name or "???"] * 2


def run_without(tmp_path: Path, package: str, statement: str) -> str:
    """Run a statement where the package `opentelemetry` is one of ours."""
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry/__init__.py").write_text(package)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{statement}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return run.stdout + run.stderr


def test_without_the_package_the_extra_is_named_before_anything_is_opened(tmp_path: Path) -> None:
    target = tmp_path / "out.otlp"
    statement = f"from rubyunwind.formats import write\nwrite({str(target)!r}, 'otlp', [])"
    said = run_without(tmp_path, "raise ImportError('gone')", statement)
    assert "the otlp format needs the package opentelemetry-proto, which cannot be imported (gone)" in said
    assert "pip install 'rubyunwind[otlp]'" in said
    assert "RubyUnwindError" in said
    assert not target.exists()


def test_the_command_says_so_before_it_records(tmp_path: Path) -> None:
    target, ran = tmp_path / "out.otlp", tmp_path / "ran"
    statement = (
        "from rubyunwind.cli.main import main\n"
        f"sys.argv = ['rubyunwind', 'record', '-o', {str(target)!r}, '--', 'touch', {str(ran)!r}]\n"
        "main()"
    )
    said = run_without(tmp_path, "raise ImportError('gone')", statement)
    assert "pip install 'rubyunwind[otlp]'" in said
    assert "Traceback" not in said
    assert not target.exists()
    assert not ran.exists()


def test_an_older_package_is_refused(tmp_path: Path) -> None:
    package = (
        "import sys, types\n"
        "for name in ('proto', 'proto.common', 'proto.common.v1', 'proto.common.v1.common_pb2',\n"
        "             'proto.profiles', 'proto.profiles.v1development',\n"
        "             'proto.profiles.v1development.profiles_pb2'):\n"
        "    module = sys.modules['opentelemetry.' + name] = types.ModuleType('opentelemetry.' + name)\n"
        "    module.__path__ = []\n"
        "    parent, _, last = ('opentelemetry.' + name).rpartition('.')\n"
        "    setattr(sys.modules[parent], last, module)\n"
    )
    said = run_without(
        tmp_path, package, "from rubyunwind.formats import write, FORMATS\nFORMATS['otlp'].check()"
    )
    assert "the installed opentelemetry-proto has older ones" in said
    assert "1.40 or newer" in said


def test_no_other_format_imports_it() -> None:
    statement = (
        "import io, sys\n"
        "from rubyunwind.formats import FORMATS, write\n"
        "for name in FORMATS:\n"
        "    if name != 'otlp': write(io.BytesIO(), name, [])\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'google'))])"
    )
    run = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
