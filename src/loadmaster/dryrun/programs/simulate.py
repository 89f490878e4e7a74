"""The door: a model of a config, stepped as a Job says on a simulated card, as a DryRun."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from loadmaster.dryrun.assume import parse_assumption
from loadmaster.dryrun.card import Card
from loadmaster.dryrun.result import DryRun
from loadmaster.errors import LoadmasterError
from loadmaster.jobs.job import Job
from loadmaster.records import Interval

Progress = Callable[[str, float], None]


def simulate(
    fields: dict[str, Any],
    name: str,
    job: Job,
    card: Card,
    *,
    conf: str = "",
    steps: int = 2,
    progress: Progress | None = None,
    context_bytes: Interval | None = None,
    onto: Callable[[Any, Any], Any] | None = None,
    assume: Sequence[str] = (),
) -> DryRun:
    """Run ``job`` on the model of ``fields`` (a config.json's) on a simulated ``card``.

    ``conf`` are the allocator's settings (PYTORCH_ALLOC_CONF), ``steps`` how many optimizer steps are run (two at least, so
    that a step with the optimizer's states is seen), ``progress`` is told a stage and the share that is done. Running out of
    memory is a result (``DryRun.oom``). ``onto(session, model)`` puts the model on the device another way than whole
    (``layouts``); ``assume`` says what operators without a fake kernel return. Raises UsageError in one sentence
    for what can't be built or run.
    """
    import torch

    from loadmaster.dryrun.programs import honoured, quirks, versions
    from loadmaster.dryrun.programs.building import quiet
    from loadmaster.dryrun.programs.loading import load
    from loadmaster.dryrun.session import Session
    from loadmaster.dryrun.summary import summarise

    tell = progress or (lambda stage, share: None)
    versions.check(job)
    notes = honoured.check(job)
    started_s = time.perf_counter()
    tell("building", 0.0)
    loaded = load(fields, name, job)
    session = Session(card, conf=conf, attention_kernel=honoured.kernel(job))
    session.mode.assumptions = {each.op: each for each in map(parse_assumption, assume)}
    session.notes.extend((*notes, *loaded.notes))
    with quiet(), session:
        quirks.apply(session._patches, session.choose.forced)
        versions.patch(session._patches, job)
        try:
            if onto is None:
                loaded.onto(session)
            else:
                loaded.model = onto(session, loaded.model)
            loaded.run(session, max(2, steps), tell)
        except torch.OutOfMemoryError:
            if session.tracker.oom is None:
                raise
        except STOPPED as error:
            raise _stopped(error, name, session) from error
        found = summarise(
            session, name=name, program=loaded.program, started_s=started_s, context_bytes=context_bytes
        )
    tell("done", 1.0)
    return found


STOPPED = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, NotImplementedError)
"""What a model's own code raises where a job doesn't suit it, or where fake tensors don't suit the code."""


def _stopped(error: Exception, name: str, session: Any) -> LoadmasterError:
    _, module = session.tracker.place.now()
    line = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    return LoadmasterError(f"{name}: the model's own code stopped in {module or 'the program'} ({line})")
