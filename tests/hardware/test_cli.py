"""``loadmaster hardware`` at the door: what is printed, and with which exit code."""

from __future__ import annotations

import json

import pytest

from loadmaster.cli.main import main
from loadmaster.hardware import Host, Link, Machine, all_gpus, find_gpu
from loadmaster.records import replace
from loadmaster.render import hardware as render
from loadmaster.workflows import hardware as workflow

GIB = 1024**3


def run(capsys, *arguments):
    code = main(["hardware", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture(params=[80, 120])
def width(request, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(request.param))
    return request.param


def test_this_machine(capsys, width):
    code, out, _ = run(capsys)
    assert code == 0
    for word in ("RAM", "Swap", "cgroup", "/dev/shm", "Locked memory", "Cores"):
        assert word in out
    assert all(len(line) <= width for line in out.splitlines())
    assert "\x1b" not in out


def test_this_machine_as_json(capsys):
    code, out, _ = run(capsys, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["schema"] == "loadmaster.hardware/1"
    assert found["machine"]["host"]["ram_total_bytes"] > 0
    assert isinstance(found["cards"], list)


def test_list(capsys, width):
    code, out, _ = run(capsys, "list")
    assert code == 0
    assert all(len(line) <= width for line in out.splitlines())
    assert len(out.splitlines()) == len(all_gpus()) + 1
    assert all(gpu.name in out for gpu in all_gpus())


def test_list_of_one_vendor(capsys):
    _, out, _ = run(capsys, "list", "--vendor", "amd", "--json")
    assert {card["device"]["gpu"]["vendor"] for card in json.loads(out)["cards"]} == {"AMD"}


def test_show(capsys, width):
    code, out, _ = run(capsys, "show", "NVIDIA", "GeForce", "RTX", "4090")
    assert code == 0
    # 25386352640 bytes by CUDA are 23.64 GiB; 24564 MiB by NVML are 23.99 GiB.
    assert "23.64 GiB" in out
    assert "23.99 GiB in nvidia-smi" in out
    assert "1008 GB/s" in out
    assert all(len(line) <= width for line in out.splitlines())


def test_show_says_what_it_assumed(capsys):
    _, out, _ = run(capsys, "show", "a100-80gb")
    assert "assumed: a100-80gb is taken to be A100 SXM4 80GB" in out


def test_every_card_can_be_shown(capsys):
    from rich.console import Console

    console = Console(width=80)
    for gpu in all_gpus():
        console.print(render.card_text(workflow.show_card(gpu.name)))
    out = capsys.readouterr().out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "None" not in out


def test_compare(capsys, width):
    code, out, _ = run(capsys, "compare", "4090", "H100:8", "mi300x", "m3 max", "t4")
    assert code == 0
    for name in ("RTX 4090", "8 × H100 SXM5 80GB", "Instinct MI300X", "Apple M3 Max", "Tesla T4"):
        assert name in out
    assert all(len(line) <= width for line in out.splitlines())


def test_rates_of_a_slice_are_its_part(capsys):
    _, out, _ = run(capsys, "show", "A100-SXM4-80GB:3g.40gb")
    assert "1020 GB/s" in out  # 2039 × 4/8
    assert "133.7 TFLOPS" in out  # bf16 312 × 3/7


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show", "rtx4900"], "unknown GPU 'rtx4900'; did you mean RTX 4090?"),
        (["show", "a100"], "GPU 'a100' is ambiguous; say which: A100 PCIe 40GB, "),
        (["compare", "4090"], "a comparison needs two cards or more"),
        (["compare", "4090", "nothing-like-it-99"], "unknown GPU 'nothing-like-it-99'"),
        (["list", "--vendor", "nvdia"], "unknown vendor 'nvdia'; did you mean NVIDIA?"),
        (["shw"], "invalid choice"),
    ],
)
def test_errors_are_one_sentence_and_exit_2(capsys, arguments, says):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert says in err
    assert "Traceback" not in err


def test_a_machine_with_cards_reads_well(width):
    from rich.console import Console

    device = replace(
        find_gpu("NVIDIA GeForce RTX 4090"),
        index=0,
        nvml_total_bytes=24564 * 1024**2,
        nvml_reserved_bytes=354 * 1024**2,
        held_bytes=2 * GIB,
        driver="590.48.01",
        link=Link(generation=1, lanes=16, max_generation=4, max_lanes=16),
        ecc=False,
    )
    host = Host(
        ram_total_bytes=64 * GIB, ram_available_bytes=40 * GIB, swap_total_bytes=8 * GIB, swap_free_bytes=8 * GIB,
        cgroup_version="v2", cgroup_path="/job", cgroup_limit_bytes=16 * GIB, cgroup_used_bytes=4 * GIB,
        shm_total_bytes=64 * 1024**2, shm_free_bytes=60 * 1024**2, memlock_unlimited=True, cores=16, platform="linux",
    )  # fmt: skip
    seen = workflow.this_machine(
        Machine(gpus=(device,), host=host, driver="590.48.01", cuda_driver_version="13.1")
    )
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        console.print(render.machine_text(seen))
    out = captured.get()
    for words in (
        "GPU 0: RTX 4090", "2.00 GiB by other processes", "gen 1 × 16 lanes now, at most gen 4 × 16", "ECC",
        "590.48.01, CUDA up to 13.1",
        "limit 16.0 GiB, 4.0 GiB in use (v2, /job)", "64.0 MiB, 60.0 MiB free", "no limit",
    ):  # fmt: skip
        assert words in out
    assert all(len(line) <= width for line in out.splitlines())
    assert json.loads(render.machine_json(seen))["cards"][0]["usable"]["held_bytes"]["likely"] == 2 * GIB
