"""Apple chips, with the platform's answers stood in for."""

from __future__ import annotations

import sys

import pytest

from loadmaster.hardware import Host, usable
from loadmaster.sensors import apple

GIB = 1024**3
MAC = Host(platform="darwin", ram_total_bytes=64 * GIB, ram_available_bytes=60 * GIB)


@pytest.fixture
def mac(monkeypatch):
    answers = {
        "machdep.cpu.brand_string": b"Apple M3 Max\0",
        "iogpu.wired_limit_mb": (0).to_bytes(4, sys.byteorder),
    }
    monkeypatch.setattr(apple.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(apple.platform, "machine", lambda: "arm64")
    monkeypatch.setattr(apple, "_sysctl", answers.get)
    return answers


def test_the_default_share(mac):
    (device,) = apple.read(MAC)
    assert device.gpu.name == "Apple M3 Max"
    assert usable(device, MAC).visible_bytes.likely == 48 * GIB  # 75 % of 64


def test_a_raised_limit_is_what_metal_allows(mac):
    mac["iogpu.wired_limit_mb"] = (57344).to_bytes(4, sys.byteorder)
    (device,) = apple.read(MAC)
    assert usable(device, MAC).visible_bytes.likely == 56 * GIB


def test_a_platform_that_does_not_answer(mac):
    mac.clear()
    assert len(apple.read(MAC)) == 1


def test_other_machines_have_none(monkeypatch):
    monkeypatch.setattr(apple.platform, "system", lambda: "Linux")
    assert apple.read(MAC) == ()


def test_a_system_without_that_call():
    assert apple._sysctl("no.such.name") is None
