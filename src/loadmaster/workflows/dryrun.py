"""``loadmaster dryrun``: from a model, factory, script or module as people name them to a DryRun."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from loadmaster.dryrun.alloc_conf import VARIABLES, parse_alloc_conf
from loadmaster.dryrun.capacity import USUAL
from loadmaster.dryrun.card import Card
from loadmaster.dryrun.pictures import check_output, check_picture, write_picture
from loadmaster.dryrun.process import run_in_child
from loadmaster.dryrun.request import Progress, Request
from loadmaster.dryrun.result import DryRun
from loadmaster.errors import BadValueError, MissingExtraError, UnknownNameError, UsageError
from loadmaster.hardware import Device, Usable, usable
from loadmaster.jobs.make import make_job
from loadmaster.plan import Plan
from loadmaster.records import replace
from loadmaster.workflows import programs
from loadmaster.workflows.plan import device_of, plan, said

LAYOUT = {
    "gpus": "gpus", "strategy": "strategy", "tensor": "tensor", "replicate": "replicate", "reshard": "reshard",
    "param_dtype": "param_dtype", "reduce_dtype": "reduce_dtype", "cpu_offload": "offload", "bucket_view": "bucket_view",
    "bucket_mb": "bucket_mb", "static_graph": "static_graph",
}  # fmt: skip
"""Words of a layout, and what ``dryrun.layouts.describe.parse_parallel`` calls them."""


class Asked(NamedTuple):
    """A dry run as it will be done, and the plan of the same job where the closed form knows its model."""

    request: Request
    plan: Plan | None
    notes: tuple[str, ...] = ()


def dryrun(
    model: Any = None,
    batch: Any = None,
    *,
    step: Callable[..., Any] | None = None,
    optimizer: Any = None,
    gpu: str | None = None,
    vram: str | int | None = None,
    steps: int = 2,
    alloc_conf: str | None = None,
    try_alloc_conf: Sequence[str] | bool = (),
    snapshot: str | os.PathLike[str] | None = None,
    picture: str | os.PathLike[str] | None = None,
    assume: Sequence[str] = (),
    argv: Sequence[str] = (),
    **how: Any,
) -> Any:
    """Run the real training step, operator by operator, on a GPU that isn't there; gives a DryRun.

    ``model`` is a name or path as for ``plan`` (then ``how`` holds the words of ``plan``: method, batch, seq, precision, ...),
    a script (``train.py``, with ``argv``), a factory (``pkg.module:build``): these run in a child process. Or it is a
    torch.nn.Module, or a function without arguments that returns one, with a ``batch`` of host tensors and a ``step(model,
    batch)`` or ``step(model, batch, optimizer)`` (None: forward, backward, optimizer step): this runs here.

    Without a model it gives a context manager: inside ``with lm.dryrun(vram="24GiB") as run:`` the device ``cuda`` is there,
    and ``run.result`` says afterwards what was found.

    ``gpu`` or ``vram`` is the card to compare with. ``alloc_conf`` are settings as in PYTORCH_ALLOC_CONF, which is obeyed when
    it is None; ``try_alloc_conf`` tries others (True: a usual list). ``snapshot`` and ``picture`` name files to be written.
    Raises a LoadmasterError in one sentence for what can't be done.
    """
    common: dict[str, Any] = {
        "gpu": gpu, "vram": vram, "steps": steps, "alloc_conf": alloc_conf, "try_alloc_conf": try_alloc_conf,
        "snapshot": snapshot, "assume": assume,
    }  # fmt: skip
    check_picture(picture)
    if model is None and "params" not in how:
        from loadmaster.workflows import dryrun_here

        return dryrun_here.context(_here("with block", **common), how)
    if model is None or isinstance(model, str | os.PathLike):
        if isinstance(batch, int) and not isinstance(batch, bool):
            how["batch"] = batch
        elif batch is not None:
            raise BadValueError("batch", type(batch).__name__, "a number of sequences where a model is named")
        found = run_asked(ask(model, argv=argv, **{**how, **common}))
    else:
        from loadmaster.workflows import dryrun_here

        if how:
            raise UsageError(
                f"{', '.join(sorted(how))}: words for a model by name; a module comes with its own step"
            )
        found = dryrun_here.run(_here("module", **common), model, batch, step, optimizer)
    if picture is not None:
        write_picture(found, picture)
    return found


def ask(
    target: str | os.PathLike[str] | None = None,
    *,
    argv: Sequence[str] = (),
    gpu: str | None = None,
    vram: str | int | None = None,
    steps: int = 2,
    alloc_conf: str | None = None,
    try_alloc_conf: Sequence[str] | bool = (),
    snapshot: str | os.PathLike[str] | None = None,
    assume: Sequence[str] = (),
    no_script: bool = False,
    **how: Any,
) -> Asked:
    """A dry run from its words, checked as far as that goes without torch; raises LoadmasterError."""
    if gpu is not None and vram is not None:
        raise UsageError("a card has one size: give gpu or vram, not both")
    kind = programs.kind_of(target, argv)
    if no_script and kind != "model":
        raise UsageError(f"{target} is a program of yours, and --no-script says that none may run")
    common: dict[str, Any] = {
        "steps": steps,
        "alloc_conf": alloc_conf,
        "try_alloc_conf": try_alloc_conf,
        "snapshot": snapshot,
        "assume": assume,
    }
    if kind == "model":
        return _model(target, argv, gpu, vram, common, how)
    if how:
        option = ", ".join(f"--{word.replace('_', '-')}" for word in sorted(how))
        hint = f"options of the {kind} itself come after its name" if kind == "script" else None
        raise UsageError(f"{option}: for a model by name; a {kind} says itself what it does", hint=hint)
    device, _, _, notes = device_of(gpu, vram, None)
    base = _request(kind, programs.named(kind, target), device, common)
    limited = kind == "script" and base.capacity_bytes is not None and not base.try_confs
    card = replace(base.card, limited=limited)
    notes = () if _is_cpu(device) else (*notes, *_elsewhere(device))
    return Asked(replace(base, card=card, argv=tuple(argv)), None, notes)


def run_asked(
    asked: Asked,
    on_progress: Callable[[Progress | None], None] | None = None,
    on_output: Callable[[bytes], None] | None = None,
) -> DryRun:
    """Do it in a child process; ``on_progress`` hears how far it is, ``on_output`` gets what a program of the user's prints."""
    check_torch()
    if asked.request.snapshot is not None:
        check_output(asked.request.snapshot, "snapshot")
    found = run_in_child(asked.request, on_progress, on_output)
    return replace(found, notes=found.notes + asked.notes) if asked.notes else found


def check_torch() -> None:
    """Raises MissingExtraError where there is no torch."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise MissingExtraError("a dry run", "dryrun")


def _model(
    target: Any, argv: Sequence[str], gpu: Any, vram: Any, common: dict[str, Any], how: dict[str, Any]
) -> Asked:
    from loadmaster.dryrun.programs.sources import fields_of

    if argv:
        raise UsageError(f"{' '.join(argv)[:80]}: only a script has arguments of its own")
    layout = {name: how.pop(word) for word, name in LAYOUT.items() if word in how}
    params = how.get("params")
    notes: tuple[str, ...] = ()
    try:
        made = plan(target, gpu=gpu, vram=vram, **how)
        job, device = made.job, made.device
        notes = tuple(note for note in made.notes if not note.startswith("no GPU seen here"))
    except UnknownNameError as error:
        if error.kind != "model_type":
            raise
        made = None
        words = {field: value for field, value in said(how).items() if field != "params"}
        job = make_job(**{"seq": 2048, **words})
        device = device_of(gpu, vram, None)[0]
    if layout:
        from loadmaster.dryrun.layouts.describe import parse_parallel

        layout = {"gpus": 1, **layout}
        parse_parallel(**layout)
    fields, name = fields_of(target, params=params)
    request = _request("model", name, device, common)
    return Asked(
        replace(request, fields=fields, job=job, layout=layout or None), made, (*notes, *_elsewhere(device))
    )


def _request(kind: Any, name: str, device: Device | None, common: dict[str, Any]) -> Request:
    """The words that every kind of dry run has; raises BadValueError for those that aren't what they should be."""
    from loadmaster.dryrun.assume import parse_assumption

    steps, tried, snapshot = common["steps"], common["try_alloc_conf"], common["snapshot"]
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= 1000:
        raise BadValueError("steps", steps, "a whole number from 1 to 1000")
    conf = common["alloc_conf"]
    if conf is None:
        conf = next((os.environ[name] for name in VARIABLES if name in os.environ), "")
    confs = (
        USUAL if tried is True else tuple(each for one in tried or () for each in ([one] if one else USUAL))
    )
    for each in (conf, *confs):
        parse_alloc_conf(each)
    for each in common["assume"]:
        parse_assumption(each)
    found = None if device is None or _is_cpu(device) else usable(device)
    return Request(
        kind=kind,
        name=name,
        card=_card(device, found),
        capacity_bytes=None if found is None else found.usable_bytes.likely,
        context_bytes=None if found is None else found.context_bytes,
        conf=conf,
        steps=steps,
        try_confs=tuple(dict.fromkeys(confs)),
        snapshot=None if snapshot is None else os.path.abspath(os.fspath(snapshot)),
        assume=tuple(common["assume"]),
    )


def _card(device: Device | None, found: Usable | None) -> Card:
    """The card as torch.cuda will describe it; without one, one that is never full."""
    if device is None or found is None:
        return Card()
    major, _, minor = (device.gpu.compute_capability or "").partition(".")
    known = major.isdigit() and minor.isdigit()
    return Card(
        name=device.name,
        total_bytes=found.visible_bytes.likely,
        usable_bytes=found.usable_bytes.likely,
        capability=(int(major), int(minor)) if known else Card().capability,
    )


def _elsewhere(device: Device | None) -> tuple[str, ...]:
    """What is simulated is CUDA, whoever made the card."""
    if device is None or device.gpu.vendor in ("NVIDIA", "CPU", "any", "unknown"):
        return ()
    simulated = "this is what PyTorch's CUDA build would take on a card of its size"
    return (f"{device.name} has no CUDA: {simulated}, and {device.gpu.vendor}'s takes memory otherwise",)


def _is_cpu(device: Device | None) -> bool:
    return device is not None and device.gpu.vendor == "CPU"


def _here(name: str, gpu: str | None, vram: str | int | None, **common: Any) -> Request:
    """A dry run in this process: on the card that was named, on none that limits it where none was."""
    device = None if gpu is None and vram is None else device_of(gpu, vram, None)[0]
    check_torch()
    if common["snapshot"] is not None:
        check_output(common["snapshot"], "snapshot")
    return _request("model", name, device, common)
