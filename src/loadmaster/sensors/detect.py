"""This machine as one record."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadmaster.hardware import Machine
from loadmaster.sensors import amd, apple, host, nvml, visible


def detect(
    root: Path = Path("/"), nvml_module: Any = None, environment: Mapping[str, str] = os.environ
) -> Machine:
    """The accelerators, memory and limits that a job started here would see; never raises.

    ``root`` is where ``/proc`` and ``/sys`` are looked for, ``nvml_module`` stands in for ``pynvml``: both for tests.
    ``CUDA_VISIBLE_DEVICES`` in ``environment`` is heeded.
    """
    around = host.read(root)
    nvidia = nvml.read(around, root, nvml_module)
    radeon, no_radeon = amd.read(root)
    metal = apple.read(around) if root == Path("/") else ()
    shown, hidden = visible.apply(nvidia.devices, environment)
    gpus = (*shown, *radeon, *metal)
    return Machine(
        gpus=gpus,
        host=around,
        absent=nvidia.absent + hidden + (no_radeon if not metal else ()),
        driver=nvidia.driver,
        cuda_driver_version=nvidia.cuda,
    )
