# SPDX-License-Identifier: Apache-2.0
"""Names of C++ and Rust functions, as a reader wants them and as an attacker makes them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rubyunwind.elf import demangle as module
from rubyunwind.elf.demangle import MAX_NAME, demangle

has_library = pytest.mark.skipif(module._demangler() is None, reason="pydemumble is not installed")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    demangle.cache_clear()
    yield
    demangle.cache_clear()
    module._demangler.cache_clear()


@has_library
@pytest.mark.parametrize(
    ("mangled", "readable"),
    [
        ("_Z3fooi", "foo(int)"),
        ("_ZNSt6vectorIiSaIiEE9push_backERKi",
         "std::vector<int, std::allocator<int>>::push_back(int const&)"),
        ("_ZSt11make_uniqueI3FooJRiEENSt8__detail9_MakeUniqIT_E15__single_objectEDpOT0_",
         "std::__detail::_MakeUniq<Foo>::__single_object std::make_unique<Foo, int&>(int&)"),
        ("_ZN4core3fmt9Formatter3pad17h0123456789abcdefE", "core::fmt::Formatter::pad"),
        ("_ZN10some_crate4main28_$u7b$$u7b$closure$u7d$$u7d$17h0123456789abcdefE",
         "some_crate::main::{{closure}}"),
        ("_RNvCs15kBYyAo9fc_7mycrate7example", "mycrate::example"),
        ("_RNvMsr_NtCs3ssYzQotkvD_3std4pathNtB5_7PathBuf3newCs15kBYyAo9fc_7mycrate",
         "<std::path::PathBuf>::new"),
    ],
)  # fmt: skip
def test_names_are_as_in_the_source(mangled: str, readable: str) -> None:
    assert demangle(mangled) == readable


@pytest.mark.parametrize(
    "name",
    ["", "main", "rb_vm_exec", "_start", "Z3fooi", "_Zfoo", "_R", "_RNv", "_ZN", "_Z3föö", "_Z\udcff", "__Zx",
     "_ZN" + "1a" * MAX_NAME + "E"],
)  # fmt: skip
def test_names_that_are_not_mangled_or_too_long_come_back_unchanged(name: str) -> None:
    assert demangle(name) == name


@has_library
def test_a_name_that_would_grow_to_gigabytes_comes_back_unchanged() -> None:
    def bomb(steps: int) -> str:
        digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
        return "_Z1fSt4pairIiiE" + "".join(f"S_IS{digits[i]}_S{digits[i]}_E" for i in range(steps))

    assert len(demangle(bomb(3))) > 400
    for steps in (10, 16, 30):
        assert demangle(bomb(steps)) == bomb(steps)
    pack = "_Z1fI" + "J" + "i" * 400 + "EEv" + "DpSt4pairIT_DpSt4pairIT_DpT_EE"
    assert demangle(pack) == pack


@has_library
def test_deep_names_do_not_overflow_the_stack() -> None:
    # In a process of its own: an overflow would not be an exception.
    code = (
        "import threading; from rubyunwind.elf.demangle import demangle\n"
        "names = ['_Z1f' + 'P' * 4000 + 'i', '_Z1f' + 'N' * 4000, '_R' + 'NvC' * 1300, '_RYM' + 'RR' * 1900, "
        "'_Z1fX' + 'nt' * 1900, '_ZN' + '1aI' * 1300]\n"
        "thread = threading.Thread(target=lambda: print(sum(len(demangle(n)) for n in names)))\n"
        "thread.start(); thread.join()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


@settings(max_examples=300)
@given(st.text(alphabet="_ZRNSTIJEKPvi0123456789aDpstLXCB$.", max_size=60))
def test_any_mangled_looking_name_gives_a_name(tail: str) -> None:
    for prefix in ("_Z", "_R"):
        assert demangle(prefix + tail)


def test_without_the_library_names_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydemumble", None)
    module._demangler.cache_clear()
    assert demangle("_Z3fooi") == "_Z3fooi"


def test_the_library_is_not_imported_before_a_mangled_name_comes() -> None:
    code = (
        "import sys; from rubyunwind.elf.demangle import demangle; demangle('rb_vm_exec'); "
        "print('pydemumble' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
