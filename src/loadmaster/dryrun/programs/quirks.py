"""What libraries do on fake tensors and wouldn't do on a GPU, put right for the time of a session."""

from __future__ import annotations

from typing import Any

from loadmaster.dryrun.tensors import Patches


def apply(patches: Patches) -> None:
    """transformers' masks: a fake tensor isn't a trace (``is_tracing`` looks for FakeTensor), and no sequences are packed."""
    try:
        from transformers import masking_utils
    except ImportError:
        return
    for name, answer in {"is_tracing": _never, "find_packed_sequence_indices": _none}.items():
        if hasattr(masking_utils, name):
            patches.set(masking_utils, name, answer)


def _never(*_: Any, **__: Any) -> bool:
    return False


def _none(*_: Any, **__: Any) -> None:
    return None
