"""A line on standard error that says how far something is, where that is a terminal and it takes a while."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from loadmaster.render.terminal import clip, look_of, plain

if TYPE_CHECKING:
    from loadmaster.dryrun.request import Progress

AFTER_S = 2.0
BAR = 20


class ProgressLine:
    """Rewrites one line; ``over`` a program's own output is put. Nothing is shown before ``AFTER_S``, nor to a file."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._shown = False
        self._last: Progress | None = None
        self._line_open = False
        stream = sys.stderr
        self._stream = stream if stream is not None and stream.isatty() else None

    def progress(self, progress: Progress | None) -> None:
        """Called often; None: nothing new, but time has passed."""
        self._last = progress or self._last
        waited_s = time.monotonic() - self._started_s
        if self._stream is None or self._last is None or waited_s < AFTER_S or self._line_open:
            return
        look = look_of(self._stream)
        last, bar = self._last, ""
        if last.done is not None and last.total:
            full = min(round(BAR * last.done / last.total), BAR)
            marks = ("█", "░") if look.unicode else ("#", ".")
            bar = f"{marks[0] * full}{marks[1] * (BAR - full)} "
        text = clip(f"{bar}{plain(last.text)}, {waited_s:.0f} s", look.width - 1)
        self._write(f"\r\x1b[K{text if look.unicode else text.encode('ascii', 'replace').decode()}")
        self._shown = True

    def output(self, data: bytes) -> None:
        """What the program prints, on standard error, so that standard output is the answer alone."""
        self.clear()
        if sys.stderr is not None:
            sys.stderr.write(data.decode("utf-8", "replace"))
            sys.stderr.flush()
            self._line_open = not data.endswith((b"\n", b"\r"))

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            self._write("\r\x1b[K")
            self._shown = False

    def _write(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(text)
            self._stream.flush()
