"""What this machine is, read from the driver, the kernel and the platform; nothing here opens a CUDA context.

``detect()`` is the door. Every reader takes the root of the file system, so that a test can lay out its own ``/proc``
and ``/sys``, and answers None or a reason where something can't be read: a missing library, a broken driver, a version
mismatch or a missing permission is a fact about the machine, not an error.

To add a kind of accelerator: one file with a ``read`` that gives devices and, when there are none, why; and its line in
``detect.py``.
"""

from __future__ import annotations

from loadmaster.sensors.detect import detect

__all__ = ["detect"]
