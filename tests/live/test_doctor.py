# SPDX-License-Identifier: Apache-2.0
"""The doctor on this very machine: what it says must be so."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from rubyunwind.bpf.features import YES, features
from rubyunwind.bpf.kinds import ProgramType
from rubyunwind.bpf.library import ffi, load_library

COMMAND = [sys.executable, "-m", "rubyunwind.cli.main", "doctor"]


def test_where_the_programs_load_every_required_feature_is_there() -> None:
    done = subprocess.run([*COMMAND, "--json"], capture_output=True, text=True, timeout=60)
    found = json.loads(done.stdout)
    assert (done.returncode, found["backend"], found["refusal"]) == (0, "bpf", "")
    assert found["load_ms"] > 0
    assert {item["answer"] for item in found["features"] if "co-re" in item["needed_by"]} == {YES}
    assert found["advice"] == []


def test_the_questions_can_be_answered_with_no() -> None:
    lib = load_library().lib
    assert lib.libbpf_probe_bpf_map_type(250, ffi.NULL) != 1
    assert lib.libbpf_probe_bpf_helper(ProgramType.PERF_EVENT, 60_000, ffi.NULL) != 1


def test_without_capabilities_it_says_so_and_names_the_backend_that_is_left() -> None:
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"]
    done = subprocess.run([*drop, *COMMAND], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    assert "backend     user" in done.stdout
    assert "asking needs CAP_BPF and CAP_PERFMON" in done.stdout
    assert "  no        CAP_SYS_PTRACE" in done.stdout
    assert "run it as root (sudo), or give it CAP_BPF, CAP_PERFMON" in done.stdout


def test_nothing_stays_open_and_it_asks_once() -> None:
    first = features()
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a link may be gone before Path looks
    assert features.__wrapped__() == first
    assert set(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    assert features() is first
