"""Plans of tensor files: the same network from its headers, with config or without, as from the catalogue."""

from __future__ import annotations

import importlib.resources
import json
from pathlib import Path

import pytest

import loadmaster as lm
from loadmaster.cli.main import main
from loadmaster.models import read_model
from loadmaster.models.parameters import tensors

NAME = "HuggingFaceTB/SmolLM2-135M"


def header_of(path: Path) -> Path:
    """A .safetensors file whose header describes the model's tensors in bfloat16, sparse where the values would be."""
    entries, offset = {}, 0
    for tensor in tensors(read_model(NAME)):
        for index in range(tensor.count):
            size = 2
            for side in tensor.shape:
                size *= side
            name = tensor.name.replace("{}", str(index), 1)
            entries[name] = {
                "dtype": "BF16",
                "shape": list(tensor.shape),
                "data_offsets": [offset, offset + size],
            }
            offset += size
    header = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + offset)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = importlib.resources.files("loadmaster") / "data" / "models" / f"{NAME.replace('/', '__')}.json"
    (tmp_path / "config.json").write_text(data.read_text(encoding="utf-8"), encoding="utf-8")
    header_of(tmp_path / "model.safetensors")
    return tmp_path


def test_a_folder_with_config_and_tensors_is_planned_as_the_catalogue_model(folder: Path) -> None:
    known = lm.plan(NAME, vram="24GiB", method="lora", seq=1024)
    found = lm.plan(str(folder), vram="24GiB", method="lora", seq=1024)
    assert found.verdict == known.verdict == "fits"
    assert found.ledger.peak.allocated == known.ledger.peak.allocated


def test_a_folder_is_planned_on_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(folder), "--vram", "24GiB", "--task", "infer"]) == 0
    assert "Fits" in capsys.readouterr().out


def test_contradictions_reach_the_plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = 2
    (folder / "config.json").write_text(json.dumps(config))
    assert main(["plan", str(folder), "--vram", "24GiB"]) in (0, 3)
    assert "config" in capsys.readouterr().out


def test_a_bare_tensor_file_is_planned_with_a_wider_interval(tmp_path: Path) -> None:
    found = lm.plan(str(header_of(tmp_path / "model.safetensors")), vram="24GiB", task="infer")
    known = lm.plan(NAME, vram="24GiB", task="infer")
    assert found.verdict is not None
    weights = next(e for e in found.ledger.at("load") if e.component == "weights")
    exact = next(e for e in known.ledger.at("load") if e.component == "weights")
    assert weights.bytes.likely == pytest.approx(exact.bytes.likely, rel=0.01)
    assert weights.bytes.high - weights.bytes.low > exact.bytes.high - exact.bytes.low
