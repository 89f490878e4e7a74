"""Reduce a real memory snapshot to numbers that a test can replay: no stacks, no file names, no times, no real addresses.

    python scripts/reduce_snapshot.py SNAPSHOT OUT.json.gz

Kept are: settings, segments with their blocks, and the trace's actions, sizes, streams and addresses less the lowest one.
"""

import gzip
import json
import sys
from pathlib import Path

from loadmaster.dryrun.snapshots import read_snapshot

ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
)
STATES = ("inactive", "active_allocated", "active_pending_free")
SETTINGS = (
    "max_split_size",
    "garbage_collection_threshold",
    "expandable_segments",
    "roundup_power2_divisions",
)
PAGE = 20 * 2**20


def reduce(snapshot):
    """The numbers of a snapshot, as lists."""
    addresses = [segment["address"] for segment in snapshot["segments"]]
    addresses += [event["addr"] for trace in snapshot["device_traces"] for event in trace if "addr" in event]
    base = min(addresses) // PAGE * PAGE - PAGE
    settings = snapshot.get("allocator_settings", {})
    segments = []
    for segment in snapshot["segments"]:
        at, blocks = segment["address"], []
        for block in segment["blocks"]:
            at = block.get("address", at)
            state = STATES.index(block["state"].replace("awaiting", "pending"))
            blocks += [at - segment["address"], block["size"], block["requested_size"], state]
            at += block["size"]
        small = int(segment["segment_type"] == "small")
        numbers = [
            segment["device"],
            segment["address"] - base,
            segment["total_size"],
            segment["allocated_size"],
        ]
        segments.append([*numbers, segment["stream"], small, int(segment["is_expandable"]), blocks])
    traces = []
    for trace in snapshot["device_traces"]:
        last, actions, sizes, steps, streams = 0, "", [], [], []
        for event in trace:
            if event["action"] not in ACTIONS:
                continue
            address = event["addr"] - base if "addr" in event else event["device_free"]
            actions += str(ACTIONS.index(event["action"]))
            sizes.append(event["size"])
            steps.append(address - last)
            streams.append(event["stream"])
            last = address
        traces.append([actions, sizes, steps, streams if any(streams) else []])
    return {
        "settings": {key: settings[key] for key in SETTINGS if key in settings},
        "segments": segments,
        "traces": traces,
    }


def main():
    """Reduce one file."""
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    text = json.dumps(reduce(read_snapshot(sys.argv[1])), separators=(",", ":"))
    Path(sys.argv[2]).write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
