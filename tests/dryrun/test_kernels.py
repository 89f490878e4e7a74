"""Which operators CUDA has kernels of its own for, against the list that torch is generated from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

torch = pytest.importorskip("torch")
torchgen = pytest.importorskip("torchgen")

FILE = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native" / "native_functions.yaml"


def keys(entry: dict[str, Any]) -> set[str]:
    """Dispatch keys that an entry of native_functions.yaml names."""
    return {key.strip() for keys in entry.get("dispatch") or {} for key in keys.split(",")}


def test_operators_with_a_cuda_kernel_beside_a_composite_form_stay_whole() -> None:
    from loadmaster.dryrun import kernels

    entries = {
        each["func"].partition("(")[0]: each for each in yaml.safe_load(FILE.read_text(encoding="utf-8"))
    }
    wanted = set()
    for name, entry in entries.items():
        kernel = keys(entry) | keys(entries.get(entry.get("structured_delegate", ""), {}))
        if "CompositeImplicitAutograd" in keys(entry) and "CUDA" in kernel:
            wanted.add(name)
    assert {func._schema.name.removeprefix("aten::") for func in kernels.WHOLE} == wanted
