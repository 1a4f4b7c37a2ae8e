# SPDX-License-Identifier: Apache-2.0
"""Container ids in the names of control groups, as runtimes write them."""

from __future__ import annotations

import os

import pytest

from rubyunwind.process import container
from rubyunwind.process.container import container_of, parse_cgroup

ID = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4
POD = "pod8dd6b0f0_93cb_4b0e_8a5e_1e1a0e7dbb7b"
SLICE = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-" + POD + ".slice"

IN_A_CONTAINER = {
    "docker, v1": f"/docker/{ID}",
    "docker, systemd": f"/system.slice/docker-{ID}.scope",
    "docker below a parent": f"/user.slice/my.slice/docker-{ID}.scope",
    "docker, rootless": f"/user.slice/user-1000.slice/user@1000.service/user.slice/docker-{ID}.scope",
    "docker, with an init of its own": f"/system.slice/docker-{ID}.scope/init.scope",
    "containerd by CRI, systemd": f"{SLICE}/cri-containerd-{ID}.scope",
    "containerd by CRI, cgroupfs": f"/kubepods/burstable/{POD}/{ID}",
    "containerd by CRI, v1, systemd": f"/system.slice/containerd.service/kubepods.slice:cri-containerd:{ID}",
    "containerd, besteffort": f"/kubepods/besteffort/{POD}/{ID}",
    "nerdctl": f"/system.slice/nerdctl-{ID}.scope",
    "ctr": f"/default/{ID}",
    "CRI-O": f"{SLICE}/crio-{ID}.scope",
    "CRI-O, v2": f"{SLICE}/crio-{ID}.scope/container",
    "podman": f"/machine.slice/libpod-{ID}.scope",
    "podman, v2": f"/machine.slice/libpod-{ID}.scope/container",
    "podman, cgroupfs": f"/libpod_parent/libpod-{ID}",
    "podman, rootless": f"/user.slice/user@1000.service/user.slice/libpod-{ID}.scope/container",
    "docker in docker": f"/docker/{OTHER}/docker/{ID}",
    "kind": f"/docker/{OTHER}/kubelet/kubepods/burstable/{POD}/{ID}",
    "garden": f"/garden.service/good/{ID}",
    "seen from another cgroup namespace": f"/../../docker-{ID}.scope",
}
NAMED = {
    "/ecs/55091c13-b8cf-4801-b527-f4601742204d/432624d2150b349fe35ba397284dea78-1234567": (
        "432624d2150b349fe35ba397284dea78-1234567"
    ),
    "/lxc/web": "web",
    "/lxc/web/system.slice/puma.service": "web",
    "/lxc.payload.web": "web",
    "/lxc.payload/web/init.scope": "web",
    "/machine.slice/machine-web\\x2d1.scope/payload": "web-1",
}
IN_NONE = (
    "/",
    "",
    "/init.scope",
    "/user.slice/user-0.slice/session-3.scope",
    "/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome-123.scope",
    "/system.slice/docker.service",
    "/system.slice/puma.service",
    f"/machine.slice/libpod-conmon-{ID}.scope",
    f"{SLICE}/crio-conmon-{ID}.scope",
    "/kubepods/burstable",
    f"/docker/{ID[:40]}",
    f"/docker/{ID}0",
    f"/docker/{ID.upper()}",
    "/machine.slice/machine-qemu\\x2d1\\x2dvm.scope",
    "/process_api/0f9673b7ce3f0f05393699b54ba96cd7",
)
V1 = "12:pids:{0}\n5:cpu,cpuacct:{0}\n1:name=systemd:{0}\n"


@pytest.mark.parametrize("version", [V1, "0::{0}\n"], ids=["v1", "v2"])
@pytest.mark.parametrize("what", IN_A_CONTAINER)
def test_a_container_has_an_id(version: str, what: str) -> None:
    assert parse_cgroup(version.format(IN_A_CONTAINER[what])) == ID


@pytest.mark.parametrize("path", NAMED)
def test_some_runtimes_give_names(path: str) -> None:
    assert parse_cgroup(f"0::{path}\n") == NAMED[path]


@pytest.mark.parametrize("version", [V1, "0::{0}\n"], ids=["v1", "v2"])
@pytest.mark.parametrize("path", IN_NONE)
def test_what_runs_in_no_container_has_none(version: str, path: str) -> None:
    assert parse_cgroup(version.format(path)) is None


def test_where_both_versions_are_mounted_one_of_them_may_know() -> None:
    assert parse_cgroup(f"9:pids:/docker/{ID}\n0::/\n") == ID
    assert parse_cgroup(f"9:pids:/\n0::/system.slice/docker-{ID}.scope\n") == ID


@pytest.mark.parametrize("text", ["", "\n\n", "0", "0:", "::::", "\udcff:\0:/docker"])
def test_a_file_of_another_form_is_no_error(text: str) -> None:
    assert parse_cgroup(text) is None


def test_a_process_that_is_not_there_is_in_none() -> None:
    assert container_of(2**30) is None
    assert container_of(os.getpid()) == parse_cgroup(open("/proc/self/cgroup").read())  # noqa: PTH123, SIM115


def test_only_so_much_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "_MOST", 3)
    assert container_of(os.getpid()) is None
