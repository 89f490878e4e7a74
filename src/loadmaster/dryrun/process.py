"""A dry run in a process of its own: an exception inside autograd may end it, and it patches torch for everyone."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

import msgspec

from loadmaster.dryrun.request import Failed, Finished, Message, Progress, Request
from loadmaster.dryrun.result import DryRun
from loadmaster.errors import LoadmasterError, UsageError

POLL_S = 0.25
CHUNK = 1 << 16
_READER: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
_KILLED_HINT = "memory of this machine ran out, perhaps: a dry run needs some for the host's own tensors"


def run_in_child(
    request: Request,
    on_progress: Callable[[Progress | None], None] | None = None,
    on_output: Callable[[bytes], None] | None = None,
) -> DryRun:
    """Do a dry run in a child process and give its record.

    ``on_progress`` gets what is being done, and None while nothing new came; ``on_output`` what the program prints. Raises what
    the child raised (its sentence, hint and exit code), or LoadmasterError where it died. An interrupt ends the child too.
    """
    child = _Child(request)
    try:
        return child.result(on_progress or (lambda _: None), on_output or (lambda _: None))
    finally:
        child.end()


class _Child:
    def __init__(self, request: Request) -> None:
        self.request = request
        self.doing = "starting"
        self._lines = b""
        self._answer: Finished | Failed | None = None
        asked, told = os.pipe(), os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-u", "-m", "loadmaster.dryrun.child", str(asked[0]), str(told[1])],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(asked[0], told[1]),
                # A working folder with a torch.py in it must not win over torch; the child drops the variable again.
                env={**os.environ, "PYTHONSAFEPATH": "1"},
                start_new_session=True,
            )
        except BaseException:
            os.close(asked[1])
            os.close(told[0])
            raise
        finally:
            os.close(asked[0])
            os.close(told[1])
        self._told = told[0]
        with suppress(BrokenPipeError), os.fdopen(asked[1], "wb") as pipe:
            pipe.write(msgspec.json.encode(request))

    def result(
        self, on_progress: Callable[[Progress | None], None], on_output: Callable[[bytes], None]
    ) -> DryRun:
        """Read until the answer is there or the child has gone; its own children may keep the pipes open."""
        output = self._process.stdout
        if output is None:
            raise AssertionError("no pipe")
        open_ends = {self._told, output.fileno()}
        while open_ends:
            gone = self._process.poll() is not None
            ready = select.select(list(open_ends), [], [], 0 if gone else POLL_S)[0]
            if not ready:
                if gone:
                    break
                on_progress(None)
            for end in ready:
                data = os.read(end, CHUNK)
                if not data:
                    open_ends.discard(end)
                elif end == self._told:
                    self._hear(data, on_progress)
                else:
                    on_output(data)
            if self._answer is not None and not ready:
                break
        return self._found()

    def _hear(self, data: bytes, on_progress: Callable[[Progress | None], None]) -> None:
        *lines, self._lines = (self._lines + data).split(b"\n")
        for line in lines:
            message = _READER.decode(line)
            if isinstance(message, Progress):
                self.doing = message.text
                on_progress(message)
            else:
                self._answer = message

    def _found(self) -> DryRun:
        answer = self._answer
        if isinstance(answer, Finished):
            return answer.record
        if answer is not None:
            kind = UsageError if answer.exit_code == UsageError.exit_code else LoadmasterError
            raise kind(answer.message, hint=answer.hint)
        code = self._process.wait()
        what = f"the dry run of {self.request.name} ended while {self.doing}"
        if code >= 0:
            raise LoadmasterError(f"{what}: its process was left with exit code {code}")
        name = signal.Signals(-code).name
        hint = _KILLED_HINT if -code == signal.SIGKILL else None
        raise LoadmasterError(f"{what}: its process was ended by {name}", hint=hint)

    def end(self) -> None:
        """No process of the child's is left behind."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        os.close(self._told)
