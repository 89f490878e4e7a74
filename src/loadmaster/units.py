"""Bytes: the only place that knows 1024 and 1000.

Inside the package a size is an ``int`` of bytes. GiB (2**30) is printed; GB (1e9) only when a vendor is quoted.
"""

from __future__ import annotations

import re

KIB = 1024
MIB = KIB * 1024
GIB = MIB * 1024
TIB = GIB * 1024

KB = 1000
MB = KB * 1000
GB = MB * 1000
TB = GB * 1000

_UNITS = {
    "b": 1, "byte": 1, "bytes": 1,
    "k": KIB, "kib": KIB, "kb": KB,
    "m": MIB, "mib": MIB, "mb": MB,
    "g": GIB, "gib": GIB, "gb": GB,
    "t": TIB, "tib": TIB, "tb": TB,
}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)\s*", re.ASCII)
_COUNT = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kKmMbBtT]?)\s*", re.ASCII)
_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


def parse_bytes(text: str) -> int:
    """Read a size such as ``24GiB``, ``24 GB``, ``512MiB`` or ``1000`` (bytes) as an int of bytes.

    GB is 1e9 and GiB 2**30; a bare ``G`` (as in Slurm and Kubernetes' ``Gi``) is read as GiB.
    Raises ValueError when the text is not a size.
    """
    match = _SIZE.fullmatch(text)
    unit = match.group(2).lower() if match else ""
    unit = {"ki": "kib", "mi": "mib", "gi": "gib", "ti": "tib"}.get(unit, unit)
    if match is None or (unit and unit not in _UNITS):
        raise ValueError(f"{text!r} is not a size; expected for example 24GiB, 24GB or 800MiB")
    whole, _, fraction = match.group(1).partition(".")
    factor = _UNITS[unit] if unit else 1
    size = int(whole or 0) * factor
    return size + (int(fraction) * factor // 10 ** len(fraction) if fraction else 0)


def parse_count(text: str) -> int:
    """Read a number of parameters such as ``7B``, ``350M`` or ``7000000000``; raises ValueError otherwise."""
    match = _COUNT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a count; expected for example 7B, 350M or 7000000000")
    whole, _, fraction = match.group(1).partition(".")
    factor = _COUNT_UNITS[match.group(2).lower()]
    return int(whole or 0) * factor + (int(fraction) * factor // 10 ** len(fraction) if fraction else 0)


def format_bytes(size_bytes: int, digits: int = 1) -> str:
    """Print a size in the binary unit that suits it: ``23.6 GiB``, ``512 B``; negative sizes keep their sign."""
    sign = "-" if size_bytes < 0 else ""
    size_bytes = abs(size_bytes)
    for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        # A TiB is only used from 10 TiB on: memory is compared in GiB.
        if size_bytes >= (10 * factor if factor == TIB else factor):
            return f"{sign}{size_bytes / factor:.{digits}f} {unit}"
    return f"{sign}{size_bytes} B"


def format_gib(size_bytes: int, digits: int = 1) -> str:
    """Print a size in GiB whatever its magnitude, so that a column can be compared: ``0.1 GiB``."""
    return f"{size_bytes / GIB:.{digits}f} GiB"


def format_count(count: int) -> str:
    """Print a number of parameters in short: ``8.03 B``, ``124 M``."""
    for unit, factor in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if 2000 * count >= 1999 * factor:  # from 999.5 on, three digits print as 1e+03
            return (
                f"{count / factor:.3g} {unit}"
                if 2 * count < 1999 * factor
                else f"{count / factor:.0f} {unit}"
            )
    return str(count)
