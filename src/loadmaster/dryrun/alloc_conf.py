"""Settings of PyTorch's CUDA caching allocator, as ``PYTORCH_CUDA_ALLOC_CONF`` gives them.

Names, defaults and limits are those of torch 2.13: c10/core/AllocatorConfig.h and .cpp (``AcceleratorAllocatorConfig``)
and c10/cuda/CUDAAllocatorConfig.h and .cpp (``CUDAAllocatorConfig``). Since when:

max_split_size_mb 1.9, garbage_collection_threshold and roundup_power2_divisions 1.12 (as a list 2.0), expandable_segments
2.1, max_non_split_rounding_mb 2.6, per_process_memory_fraction 2.10, large_segment_size_mb 2.11 (releases after the pull
requests' dates).

Numbers are read as ``std::stoull`` and ``std::stod`` read them (``20.5`` is 20, ``-1`` the largest number there is).
Where torch lets wrong punctuation pass unnoticed, it is refused here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping

from loadmaster.errors import BadValueError, UnknownNameError, UsageError
from loadmaster.records import Record
from loadmaster.units import MIB

LARGEST = 2**64 - 1
"""``std::numeric_limits<size_t>::max()``: a max_split_size that nothing reaches."""

LARGE_SEGMENT = (
    20 * MIB
)  # AllocatorConfig.h: large_segment_size_{20971520}, before 2.11 the constant kLargeBuffer
MIN_LARGE_ALLOC = 10 * MIB  # kMinLargeAlloc
INTERVALS = 16  # kRoundUpPowerOfTwoIntervals: powers of two from 1 MiB to 32 GiB

VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""The first that is set wins, even if it is empty. The comment in torch 2.13's header says the reverse; its code doesn't
(``AcceleratorAllocatorConfig::instance``, ``CUDAAllocatorConfig::instance``)."""


class AllocConf(Record, kw_only=True):
    """What the settings say about sizes; settings that only change speed or host memory are checked and dropped."""

    max_split_size_bytes: int = LARGEST
    roundup_power2_divisions: tuple[int, ...] = (0,) * INTERVALS
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    max_non_split_rounding_bytes: int = LARGE_SEGMENT
    large_segment_size_bytes: int = LARGE_SEGMENT
    per_process_memory_fraction: float = 1.0
    text: str = ""

    @property
    def rounds_to_divisions(self) -> bool:
        """Whether any size is rounded otherwise than to 512 bytes."""
        return max(self.roundup_power2_divisions) > 1

    def settings(self) -> dict[str, object]:
        """``allocator_settings`` of a memory snapshot (torch/csrc/cuda/memory_snapshot.cpp)."""
        unlimited = self.max_split_size_bytes == LARGEST
        return {
            "PYTORCH_CUDA_ALLOC_CONF": self.text,
            "max_split_size": -1 if unlimited else self.max_split_size_bytes,
            "garbage_collection_threshold": self.garbage_collection_threshold,
            "expandable_segments": self.expandable_segments,
            "pinned_num_register_threads": 1,
            "release_lock_on_cudamalloc": False,
            "pinned_use_cuda_host_register": False,
            "graph_capture_record_stream_reuse": False,
            "roundup_power2_divisions": {
                str(1 << at): divisions for at, divisions in enumerate(self.roundup_power2_divisions)
            },
        }


def parse_alloc_conf(text: str) -> AllocConf:
    """Read ``key:value,key:[value,value]``; raises UsageError where torch would raise, naming what it expects."""
    tokens = _tokens(text)
    fields: dict[str, object] = {"text": text}
    at = 0
    while at < len(tokens):
        key = tokens[at]
        if key not in _READERS:
            raise UnknownNameError("allocator setting", key, difflib.get_close_matches(key, _READERS, n=1))
        if at + 2 >= len(tokens) or tokens[at + 1] != ":":
            raise BadValueError(key, "".join(tokens[at + 1 : at + 3]), f"{key}:VALUE")
        end = at + 3
        if tokens[at + 2] == "[":
            if "]" not in tokens[at:]:
                raise BadValueError(key, "".join(tokens[at + 2 :]), "a list that ends with ]")
            end = tokens.index("]", at) + 1
        name, value = _READERS[key](key, tokens[at + 2 : end], fields)
        if name:
            fields[name] = value
        if end < len(tokens) and tokens[end] != ",":
            raise BadValueError(key, "".join(tokens[at + 2 : end + 1]), "a comma before the next setting")
        at = end + 1
    return AllocConf(**fields)  # type: ignore[arg-type]


def from_environment(environ: Mapping[str, str]) -> AllocConf:
    """The settings that a process with these environment variables has (see ``VARIABLES``)."""
    for variable in VARIABLES:
        if variable in environ:
            return parse_alloc_conf(environ[variable])
    return AllocConf()


def _tokens(text: str) -> list[str]:
    """``ConfigTokenizer``: white space is nothing, even inside a word."""
    return re.findall(r"[,:\[\]]|[^,:\[\]]+", re.sub(r"\s+", "", text))


def _whole(key: str, word: str) -> int:
    """``std::stoull``: the digits a word begins with; a minus sign wraps around."""
    match = re.match(r"[+-]?\d+", word)
    if match is None or abs(int(match.group())) > LARGEST:
        raise BadValueError(key, word, "a whole number")
    return int(match.group()) % (LARGEST + 1)


def _real(key: str, word: str) -> float:
    match = re.match(r"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?)", word)
    if match is None:
        raise BadValueError(key, word, "a number")
    return float(match.group())


def _one(key: str, tokens: list[str]) -> str:
    if len(tokens) != 1:
        raise BadValueError(key, "".join(tokens), "a single value")
    return tokens[0]


def _power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


Reader = Callable[[str, list[str], Mapping[str, object]], tuple[str, object]]


def _large_segment(key: str, tokens: list[str], _fields: Mapping[str, object]) -> tuple[str, object]:
    value = _whole(key, _one(key, tokens))
    if value <= MIN_LARGE_ALLOC // MIB:
        raise BadValueError(key, tokens[0], f"more than {MIN_LARGE_ALLOC // MIB}")
    return "large_segment_size_bytes", min(value, LARGEST // MIB) * MIB


def _at_least_a_segment(field: str) -> Reader:
    """Of max_split_size_mb and max_non_split_rounding_mb: not below the large segment, as far as it has been read."""

    def read(key: str, tokens: list[str], fields: Mapping[str, object]) -> tuple[str, object]:
        value = _whole(key, _one(key, tokens))
        least = fields.get("large_segment_size_bytes", LARGE_SEGMENT)
        assert isinstance(least, int)
        if value < least // MIB:
            raise BadValueError(key, tokens[0], f"at least {least // MIB}")
        return field, min(value, LARGEST // MIB) * MIB

    return read


def _threshold(key: str, tokens: list[str], _fields: Mapping[str, object]) -> tuple[str, object]:
    value = _real(key, _one(key, tokens))
    if not 0 < value < 1:
        raise BadValueError(key, tokens[0], "a number between 0 and 1, without these")
    return key, value


def _fraction(key: str, tokens: list[str], _fields: Mapping[str, object]) -> tuple[str, object]:
    value = _real(key, _one(key, tokens))
    if not 0 <= value <= 1:
        raise BadValueError(key, tokens[0], "a number from 0 to 1")
    return key, value


def _switch(field: str) -> Reader:
    def read(key: str, tokens: list[str], _fields: Mapping[str, object]) -> tuple[str, object]:
        word = _one(key, tokens)
        if word not in {"True", "False"}:
            raise BadValueError(key, word, "True or False")
        return field, word == "True"

    return read


def _divisions(key: str, tokens: list[str], _fields: Mapping[str, object]) -> tuple[str, object]:
    """``parseRoundUpPower2Divisions``: one number for every size, or a list of ``MiB:number`` that ends with ``>``."""
    if tokens[0] != "[":
        value = _whole(key, _one(key, tokens))
        if not _power_of_two(value):
            raise BadValueError(key, tokens[0], "a power of two")
        return key, (value,) * INTERVALS
    table = [0] * INTERVALS
    last, first = 0, True
    for pair in filter(None, "".join(tokens[1:-1]).split(",")):
        boundary, colon, number = pair.partition(":")
        value = _whole(key, number) if colon else -1
        if value and not _power_of_two(value):
            raise BadValueError(key, pair, "MiB:DIVISIONS with a power of two or 0 as divisions")
        if boundary == ">":
            table[last + 1 :] = [value] * (INTERVALS - last - 1)
            continue
        start = _whole(key, boundary)
        if not _power_of_two(start):
            raise BadValueError(key, pair, "MiB:DIVISIONS with a power of two as MiB")
        last = min(start.bit_length() - 1, INTERVALS - 1)
        if first:
            table[:last] = [value] * last
            first = False
        table[last] = value
    return key, tuple(table)


def _backend(key: str, tokens: list[str], _fields: Mapping[str, object]) -> tuple[str, object]:
    word = _one(key, tokens)
    if word == "cudaMallocAsync":
        raise UsageError(
            "backend:cudaMallocAsync leaves caching to the CUDA driver, whose rules are not public: it can't be simulated",
            hint="ask without the backend setting for what PyTorch's own allocator takes",
        )
    if word != "native":
        raise BadValueError(key, word, "native or cudaMallocAsync")
    return "", None


def _threads(key: str, tokens: list[str], _fields: Mapping[str, object]) -> tuple[str, object]:
    value = _whole(key, _one(key, tokens))
    if not _power_of_two(value) or value > 128:  # pinned_max_register_threads
        raise BadValueError(key, tokens[0], "a power of two up to 128")
    return "", None


def _host_size(key: str, tokens: list[str], _fields: Mapping[str, object]) -> tuple[str, object]:
    value = _whole(key, _one(key, tokens))
    if value == 0 and key == "pinned_reserve_segment_size_mb":
        raise BadValueError(key, tokens[0], "more than 0")
    return "", None


_READERS: dict[str, Reader] = {
    "max_split_size_mb": _at_least_a_segment("max_split_size_bytes"),
    "max_non_split_rounding_mb": _at_least_a_segment("max_non_split_rounding_bytes"),
    "large_segment_size_mb": _large_segment,
    "garbage_collection_threshold": _threshold,
    "roundup_power2_divisions": _divisions,
    "expandable_segments": _switch("expandable_segments"),
    "per_process_memory_fraction": _fraction,
    "backend": _backend,
    # No effect on the sizes of device blocks:
    "pinned_use_background_threads": _switch(""),
    "pinned_max_round_threshold_mb": _host_size,
    "pinned_max_cached_size_mb": _host_size,
    "pinned_reserve_segment_size_mb": _host_size,
    "pinned_num_register_threads": _threads,
    "pinned_use_cuda_host_register": _switch(""),
    "pinned_use_hip_host_register": _switch(""),
    "pinned_free_catch_all": _switch(""),
    "release_lock_on_cudamalloc": _switch(""),
    "release_lock_on_hipmalloc": _switch(""),
    "graph_capture_record_stream_reuse": _switch(""),
    "throw_on_cudamalloc_oom": _switch(""),
}


def divisions_of(conf: AllocConf, size_bytes: int) -> int:
    """``roundup_power2_divisions(size)``: the entry of the power of two at or below it, 1 MiB to 32 GiB."""
    at = max(size_bytes, 1).bit_length() - 1 - (MIB.bit_length() - 1)
    return conf.roundup_power2_divisions[min(max(at, 0), INTERVALS - 1)]


def round_size(conf: AllocConf, size_bytes: int) -> int:
    """``DeviceCachingAllocator::round_size`` and ``roundup_power2_next_division`` (with divisions: 1.12)."""
    if size_bytes < 512:
        return 512
    divisions = divisions_of(conf, size_bytes)
    if divisions <= 1 or size_bytes <= 512 * divisions:
        return (size_bytes + 511) & -512
    step = (1 << (size_bytes.bit_length() - 1)) >> (divisions.bit_length() - 1)
    return (size_bytes + step - 1) & -step


def segment_size(conf: AllocConf, rounded_bytes: int) -> int:
    """``get_allocation_size``: what the driver is asked for when no block fits (2019; large_segment_size 2.11)."""
    if rounded_bytes <= MIB:
        return 2 * MIB
    if rounded_bytes < MIN_LARGE_ALLOC:
        return conf.large_segment_size_bytes
    return -(-rounded_bytes // (2 * MIB)) * 2 * MIB
