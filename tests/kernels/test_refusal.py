# SPDX-License-Identifier: Apache-2.0
"""A kernel older than 4.19 is refused with the names of what it lacks, and sampled from user space."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from facts import note

from rubyunwind import record
from rubyunwind.bpf.flavour import choose_flavour
from rubyunwind.errors import NotSupported

SPIN = """\
def inner
  nil while true
end
Thread.new { sleep 3; exit! }
inner
"""


def test_the_refusal_names_what_is_missing_and_the_kernel_that_has_it() -> None:
    with pytest.raises(NotSupported) as caught:
        choose_flavour()
    text = str(caught.value)
    print(text)
    assert "map type lpm_trie (needs Linux 4.11)" in text
    assert "map type hash_of_maps (needs Linux 4.12)" in text
    assert "program type raw_tracepoint (needs Linux 4.17)" in text
    assert "CAP_BPF" in text
    assert caught.value.needs == "Linux 4.19"


def test_recording_falls_back_to_user_space_and_asked_for_bpf_it_refuses(tmp_path: Path) -> None:
    program = tmp_path / "spin.rb"
    program.write_text(SPIN)
    command = ["ruby", "--disable-gems", str(program)]
    with pytest.raises(NotSupported, match="lpm_trie"):
        record(command=command, rate=49, duration=30, backend="bpf")
    profile = record(command=command, rate=49, duration=30)
    labels = [frame.label for sample in profile.samples for frame in sample.frames[:1]]
    assert labels.count("inner") >= 20
    note("user space", arch="(refused)")


def test_the_doctor_says_which_backend_is_left() -> None:
    command = [sys.executable, "-m", "rubyunwind.cli.main", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "backend     user" in done.stdout
    assert "map type lpm_trie is missing; it needs Linux 4.11" in done.stdout
