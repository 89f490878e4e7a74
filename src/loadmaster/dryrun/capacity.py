"""A run that had all the memory it asked for, judged against a card: where it would run out, and under which settings."""

from __future__ import annotations

from collections.abc import Iterable

from loadmaster.dryrun.alloc_conf import AllocConf, parse_alloc_conf, round_size, segment_size
from loadmaster.dryrun.events import Trace
from loadmaster.dryrun.replaying import Replayed, replay, try_confs
from loadmaster.dryrun.result import OutOfMemory, Setting

USUAL = (
    "expandable_segments:True",
    "max_split_size_mb:512",
    "max_split_size_mb:128",
    "roundup_power2_divisions:8",
)
"""What people try first, each with what PyTorch's page "CUDA semantics" says of it: less fragmentation (the first three), fewer
different sizes. ``garbage_collection_threshold`` isn't here: it does nothing without a memory fraction below 1."""


def find_oom(trace: Trace, conf: AllocConf, capacity_bytes: int) -> OutOfMemory | None:
    """Where a run would ask for more than ``capacity_bytes``, given its trace without a limit; None: nowhere.

    Cached segments are given back first, as PyTorch does. ``requested_bytes`` is what the driver is asked for, as in PyTorch's
    message.
    """
    if max(trace.reserved_bytes, default=0) <= capacity_bytes and conf == AllocConf(text=conf.text):
        return None  # without settings a limit that isn't reached changes nothing
    found = replay(trace.replayable(), conf, capacity_bytes)
    return None if found.oom_at is None else _told(trace, conf, found, capacity_bytes)


def _told(trace: Trace, conf: AllocConf, found: Replayed, capacity_bytes: int) -> OutOfMemory:
    event = trace.events[found.oom_at or 0]
    if event is None or event < 0:
        raise AssertionError("only an allocation runs out of memory")
    block = trace.blocks[event]
    return OutOfMemory(
        module=block.module,
        op=block.op,
        shape=block.shape,
        phase=block.phase,
        step=block.step,
        requested_bytes=segment_size(conf, round_size(conf, block.requested_bytes)),
        allocated_bytes=found.allocated_bytes,
        reserved_bytes=found.reserved_bytes,
        capacity_bytes=capacity_bytes,
        largest_free_bytes=found.largest_free_bytes,
        inactive_split_bytes=found.split_bytes,
    )


def try_settings(
    trace: Trace, conf: str, confs: Iterable[str], capacity_bytes: int | None
) -> tuple[Setting, ...]:
    """The same run under each of the allocator's settings, and under ``conf``; best first."""
    texts = dict.fromkeys([conf, *confs])
    tried = try_confs(list(trace.replayable()), [parse_alloc_conf(text) for text in texts], capacity_bytes)
    return tuple(
        Setting(
            conf=each.conf.text,
            fits=None if capacity_bytes is None else each.replayed.oom_at is None,
            allocated_bytes=each.replayed.peak_allocated_bytes,
            reserved_bytes=each.replayed.peak_reserved_bytes,
            retries=each.replayed.num_alloc_retries,
        )
        for each in tried
    )
