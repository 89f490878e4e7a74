"""A Plan for a terminal: verdict first, then where the bytes are, then what would help, then what it rests on."""

from __future__ import annotations

from loadmaster.memory.ledger import Tier
from loadmaster.memory.serving import Budget
from loadmaster.models.parameters import parameter_count
from loadmaster.plan import Plan
from loadmaster.records import Interval
from loadmaster.render.bar import bar, pieces
from loadmaster.render.ladder import ladder
from loadmaster.render.serving import holds, serving
from loadmaster.render.sizes import Scale, apart, scale_of
from loadmaster.render.terminal import Cell, Look, plain, table, wrap
from loadmaster.units import format_count

WIDE = 100
_METHODS = {"full": "full", "lora": "LoRA", "qlora": "QLoRA"}


def plan_text(
    plan: Plan, look: Look, *, explain: bool = False, rule_of_thumb: bool = False, compare_rules: bool = False
) -> str:
    """The whole answer as text that ends in a newline."""
    peak = plan.ledger.peak
    scale = scale_of(max(peak.process.high, plan.usable_bytes.likely if plan.usable_bytes else 0))
    sections = [
        _title(plan, look),
        _headline(plan, look),
        _bar(plan, look, scale),
        _peaks(plan, look, scale),
        _phases(plan, look, scale),
        serving(plan, look),
        _host(plan, look),
    ]
    if plan.verdict == "does_not_fit":
        sections += ladder(plan, look, scale)
    if rule_of_thumb:
        from loadmaster.plan.rules_of_thumb import rules_of_thumb
        from loadmaster.render.thumb import rules

        sections.append(rules(rules_of_thumb(plan), look))
    if compare_rules:
        from loadmaster.plan import published_rules
        from loadmaster.render.thumb import comparison

        sections.append(comparison(published_rules.compare_rules(plan), look))
    if explain:
        from loadmaster.render.explain import explanation

        sections.append(explanation(plan, look))
    sections.append(_small_print(plan, look))
    return look.out(line for section in sections if section for line in [*section, ""])


def job_words(plan: Plan) -> str:
    """The job in a few words: ``LoRA r=16 in bf16, batch 1 × 4,096 tokens``."""
    job = plan.job
    what = {"train": "training", "finetune": "fine-tuning", "infer": "inference", "serve": "serving"}[
        job.task
    ]
    if job.training:
        dora = job.lora is not None and job.lora.dora
        what = f"{_METHODS[job.method].replace('LoRA', 'DoRA') if dora else _METHODS[job.method]} {what}"
    if job.lora is not None:
        what = f"{what}, rank {job.lora.rank}"
    steps = f" × {job.grad_accumulation} accumulated" if job.grad_accumulation > 1 else ""
    return f"{what}, {batch_words(plan)}{steps}"


def batch_words(plan: Plan) -> str:
    """``batch 1 × 4,096 tokens``; for models of images ``batch of 2 images (197 patches each)``."""
    job, tower = plan.job, plan.model.decoder
    if tower.modality not in ("vision", "image", "image_latent"):
        return f"batch {job.micro_batch:,} × {job.seq_len:,} tokens"
    images = f"batch of {job.micro_batch:,} image{'s' if job.micro_batch > 1 else ''}"
    if tower.plane is not None:
        kind = "latents" if tower.modality == "image_latent" else "pixels"
        return f"{images} of {' × '.join(map(str, tower.plane))} {kind}"
    return f"{images} ({tower.tokens or job.seq_len:,} patches each)"


def parameters_words(plan: Plan) -> str:
    """``(7.62 B parameters)``."""
    about = "" if plan.model.exact else "about "
    return f"({about}{format_count(parameter_count(plan.model))} parameters)"


def headline(plan: Plan) -> list[tuple[str, str, str]]:
    """The verdict as a mark, a style and a sentence; two where the host's memory is short too, the worse one first."""
    sentences = [_vram_sentence(plan)]
    if plan.ram_verdict in ("does_not_fit", "tight"):
        sentences.append(_ram_sentence(plan))
    return sorted(sentences, key=lambda sentence: sentence[1] != "bold,red")


def _title(plan: Plan, look: Look) -> list[str]:
    card = f", on {plan.device.name}" if plan.device is not None else ""
    text = f"{plan.model.name} {parameters_words(plan)}: {job_words(plan)}{card}"
    return wrap(plain(text), look.width)


def _headline(plan: Plan, look: Look) -> list[str]:
    lines = []
    for mark, style, text in headline(plan):
        wrapped = wrap(plain(text), look.width, first=f"{mark} ", indent="  ")
        lines += [look.paint(line, style) for line in wrapped]
    if _on_cpu(plan):
        words = "no GPU here, so this is about its CPU and RAM; name a card with --gpu or a size with --vram"
        lines += wrap(words, look.width, first="  ", indent="  ")
    for warning in plan.ledger.warnings:
        wrapped = wrap(f"Beware: {plain(warning)}", look.width, first="  ", indent="  ")
        lines += [look.paint(line, "yellow") for line in wrapped]
    return lines


def _on_cpu(plan: Plan) -> bool:
    return plan.device is not None and plan.device.gpu.vendor == "CPU"


def _vram_sentence(plan: Plan) -> tuple[str, str, str]:
    peak = plan.ledger.peak
    where = f"at {peak.phase} ({peak.moment})"
    allocated = apart(peak.allocated.likely)
    if plan.device is not None and plan.usable_bytes is not None and plan.verdict is None:
        room = f"the {plan.device.name} leaves {apart(plan.usable_bytes.likely)}"
        alone = "weights, gradients and optimizer states" if plan.job.training else "weights"
        return (
            "?",
            "bold",
            f"No verdict: {alone} alone take {allocated}, {room}; what runs on top isn't known.",
        )
    if plan.device is None or plan.usable_bytes is None or plan.margin_bytes is None:
        needs = f"No GPU here: showing what the job needs, {allocated} allocated {where}"
        return "?", "bold", f"{needs}. Name a card with --gpu or a size with --vram."
    leaves = f"the {plan.device.name} leaves {apart(plan.usable_bytes.likely)} to a job"
    if plan.budget is not None and (plan.budget.engine == "vllm" or not plan.budget.starts):
        return _server_sentence(plan, plan.budget)
    if plan.verdict == "does_not_fit":
        needs = f"Does not fit: needs {allocated} allocated {where}, {leaves}"
        return "✗", "bold,red", f"{needs}; {apart(-plan.margin_bytes)} are missing."
    needs = f"needs {allocated} allocated {where}, {leaves}; {apart(plan.margin_bytes)} stay free"
    if plan.verdict == "fits":
        cache = ", which PyTorch's cache will fill" if peak.reserved.likely > plan.usable_bytes.likely else ""
        return "✓", "bold,green", f"Fits: {needs}{cache}."
    may = f"up to {apart(peak.allocated.high)} may be allocated"
    why = (
        may if peak.allocated.high > plan.usable_bytes.likely else "pieces that can't be reused may need more"
    )
    return "!", "bold,yellow", f"Tight: {needs}, but {why}."


_MARKS = {
    "fits": ("✓", "bold,green", "Fits"), "tight": ("!", "bold,yellow", "Tight"),
    "does_not_fit": ("✗", "bold,red", "Does not fit"),
}  # fmt: skip


def _server_sentence(plan: Plan, budget: Budget) -> tuple[str, str, str]:
    mark, style, word = _MARKS[plan.verdict or "does_not_fit"]
    pool = f"{budget.engine}'s budget leaves {apart(budget.pool.likely)} to KV cache"
    return mark, style, f"{word}: {pool}; {holds(plan, budget)}."


def _ram_sentence(plan: Plan) -> tuple[str, str, str]:
    ledger, host = plan.ledger, plan.host
    there = host.usable_ram_bytes if host is not None else None
    have = f"this machine has {apart(there or 0)} of RAM left"
    doing = _DOING[ledger.ram_phase]
    if plan.ram_verdict == "does_not_fit":
        return "✗", "bold,red", f"RAM is not enough: {doing} takes {apart(ledger.ram.low)} at least, {have}."
    needs = f"{doing} takes {apart(ledger.ram.likely)}"
    if ledger.ram_phase == "load":
        needs += f" if the whole model is made in RAM first, {apart(ledger.ram.low)} tensor by tensor"
    return "!", "bold,yellow", f"RAM is tight: {needs}; {have}."


_DOING = {"load": "loading the model", "run": "running", "save": "saving"}


def _bar(plan: Plan, look: Look, scale: Scale) -> list[str]:
    peak = plan.ledger.peak
    limit = plan.usable_bytes.likely if plan.usable_bytes else None
    what = "Memory" if _on_cpu(plan) else "GPU memory"
    title = look.paint(f"{what} at {peak.phase}, {scale.unit}", "bold")
    return [title, *bar(pieces(plan), limit, look, scale)]


_TOOLS = {"AMD": "amd-smi", "Apple": "Activity Monitor", "CPU": "top"}


def _peaks(plan: Plan, look: Look, scale: Scale) -> list[str]:
    peak = plan.ledger.peak
    wide = look.width >= WIDE
    allocated = "in tensors (torch.cuda.max_memory_allocated)" if wide else "in tensors"
    reserved = "with PyTorch's cache (max_memory_reserved)" if wide else "with PyTorch's cache"
    vendor = plan.device.gpu.vendor if plan.device is not None else ""
    shown = f"as {_TOOLS.get(vendor, 'nvidia-smi')} shows"
    total = shown if plan.device else f"{shown}, less the CUDA context"
    rows = [
        _head(f"Peak, {scale.unit}"),
        _interval("allocated", peak.allocated, scale, allocated),
        _interval("reserved", peak.reserved, scale, reserved),
        _interval("process total", peak.process, scale, total),
    ]
    return table(rows, look, right=(1, 2, 3), indent="")


def _head(title: str) -> list[Cell]:
    return [(title, "bold"), ("low", "dim"), ("likely", "dim"), ("high", "dim"), ("", "")]


def _interval(name: str, size: Interval, scale: Scale, text: str) -> list[Cell]:
    return [
        (f"  {name}", ""),
        (scale.number(size.low), "dim"),
        (scale.number(size.likely), "bold"),
        (scale.number(size.high), "dim"),
        (text, "dim"),
    ]


def _phases(plan: Plan, look: Look, scale: Scale) -> list[str]:
    rows: list[list[Cell]] = [[(f"Phases, {scale.unit} allocated", "bold"), ("", ""), ("", "")]]
    for phase in plan.ledger.phases:
        top = phase.phase == plan.ledger.peak.phase
        rows.append(
            [
                (f"  {phase.phase}", ""),
                (scale.number(phase.allocated.likely), "bold" if top else ""),
                (f"{phase.moment}{'  ← peak' if top else ''}", "" if top else "dim"),
            ]
        )
    return table(rows, look, right=(1,), indent="")


def _host(plan: Plan, look: Look) -> list[str]:
    ledger = plan.ledger
    span = f"{apart(ledger.ram.low)} to {apart(ledger.ram.high)}"
    parts = _parts(plan, ledger.ram_phase, "ram")
    ram = f"{apart(ledger.ram.likely)} ({span}) while {_DOING[ledger.ram_phase]}: {parts}"
    there = plan.host.usable_ram_bytes if plan.host is not None else None
    if there is not None:
        ram += f"; {apart(there)} available here"
    rows: list[list[Cell]] = [[("RAM", "bold"), (ram, "")]]
    for entry in ledger.entries:
        if entry.tier == "managed":
            where = "PyTorch doesn't count them; on the card while it has room, in RAM else"
            rows.append(
                [("Paged", "bold"), (f"{apart(entry.bytes.likely)} of optimizer states: {where}", "")]
            )
    if ledger.disk.likely:
        rows.append(
            [
                ("Disk", "bold"),
                (f"{apart(ledger.disk.likely)} a checkpoint: {_parts(plan, 'save', 'disk')}", ""),
            ]
        )
    return table(rows, look, indent="")


def _parts(plan: Plan, phase: str, tier: Tier) -> str:
    entries = [entry for entry in plan.ledger.at(phase, tier) if entry.bytes.likely]
    return ", ".join(f"{entry.component} {apart(entry.bytes.likely)}" for entry in entries)


def _small_print(plan: Plan, look: Look) -> list[str]:
    rows: list[list[Cell]] = [
        [(f"  {a.field}", "dim"), (plain(a.text), "dim")] for a in plan.ledger.assumptions
    ]
    rows += [[("  note", "yellow"), (plain(note), "")] for note in plan.notes]
    return [look.paint("Assumed (each of these moves the answer)", "dim"), *table(rows, look, indent="")]
