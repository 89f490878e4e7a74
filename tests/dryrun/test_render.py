"""What a dry run looks like on terminals, as JSON, HTML and PNG; where it would run out, against the simulated card itself."""

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

from loadmaster.dryrun.alloc_conf import parse_alloc_conf
from loadmaster.dryrun.capacity import find_oom, try_settings
from loadmaster.dryrun.card import Card
from loadmaster.dryrun.finishing import finish, keeping, trace_of
from loadmaster.dryrun.request import Request
from loadmaster.dryrun.result import Answer, DryRun, Rank, Share
from loadmaster.dryrun.session import Session
from loadmaster.dryrun.summary import summarise
from loadmaster.records import replace
from loadmaster.render import dryrun_modules
from loadmaster.render.dryrun import dryrun_text
from loadmaster.render.dryrun_html import dryrun_html
from loadmaster.render.dryrun_json import SCHEMA, DryRunFields, dryrun_json, json_schema
from loadmaster.render.dryrun_page import dryrun_page
from loadmaster.render.dryrun_picture import dryrun_png
from loadmaster.render.dryrun_words import columns, pieces
from loadmaster.render.terminal import Look, cells
from loadmaster.units import MIB
from loadmaster.workflows.plan import plan

DOCS = Path(__file__).parents[2] / "docs"
ANSI = re.compile(r"\x1b\[[0-9;]*m")
HOSTILE = "<script>alert(1)</script>&\"'\x1b[31m\n"
WIDTH, LAYERS = 512, 4
MATRIX = 4 * WIDTH * WIDTH


def train(session):
    """Two steps of four square float32 matrices without bias."""
    with session:
        model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]).to("cuda")
        session.watch.name(model, "model")
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        for _ in range(2):
            model(torch.zeros(8, WIDTH, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.fixture(scope="module")
def made():
    """The record of a run that had all the memory it asked for, and its trace."""
    session = Session(Card(name="Some Card"))
    train(session)
    return summarise(session, name="four matrices", program="two steps", started_s=0.0), session.tracker.trace


@pytest.fixture(scope="module")
def runs(made):
    """The same run without a card, on one that is large enough, on one that isn't, and with everything that can be said."""
    record, trace = made

    def on(capacity, **more):
        return finish(record, trace, Request(kind="model", name="x", capacity_bytes=capacity, **more))

    full = on(14 * MATRIX + 4 * MIB, try_confs=("expandable_segments:True", "max_split_size_mb:64"))
    full = replace(
        full,
        answers=tuple(Answer(question="value", answer="1.0", asker=f"train.py:{n}", count=n) for n in range(1, 9)),
        skipped=(("torch.save", 3),),
        ranks=(Rank(name="rank 0", ranks=(0,), allocated_bytes=9, reserved_bytes=9),
               Rank(name="ranks 1-7", ranks=tuple(range(1, 8)), allocated_bytes=8, reserved_bytes=9)),
        attention=(("flash", 2),),
        notes=("a note",),
    )  # fmt: skip
    return {"none": on(None), "fits": on(1024 * MIB), "runs out": on(12 * MATRIX), "full": full}


@pytest.fixture(params=["none", "fits", "runs out", "full"])
def run(request, runs):
    return runs[request.param]


# Where it would run out


@pytest.mark.parametrize("matrices", [3, 6, 9, 12, 15])
def test_a_limit_found_afterwards_is_where_the_card_itself_refuses(made, matrices):
    _, trace = made
    capacity = matrices * MATRIX + 2 * MIB
    found = find_oom(trace, parse_alloc_conf(""), capacity)
    limited = Session(Card(limited=True, total_bytes=capacity, usable_bytes=capacity))
    try:
        train(limited)
    except torch.OutOfMemoryError:
        refused = limited.tracker.oom
        assert (found.module, found.op, found.phase, found.step) == (
            refused.module, refused.op, refused.phase, refused.step,
        )  # fmt: skip
        assert found.requested_bytes == refused.requested_bytes
        assert (found.allocated_bytes, found.reserved_bytes) == (
            refused.allocated_bytes,
            refused.reserved_bytes,
        )
        assert found.largest_free_bytes == refused.largest_free_bytes
    else:
        assert found is None


def test_a_setting_fits_exactly_where_nothing_is_refused(made):
    _, trace = made
    confs = ("expandable_segments:True", "roundup_power2_divisions:2")
    for capacity in (12 * MATRIX, 14 * MATRIX + 8 * MIB, 1024 * MIB):
        tried = try_settings(trace, "", confs, capacity)
        assert {each.conf for each in tried} == {"", *confs}
        for each in tried:
            assert each.fits is (find_oom(trace, parse_alloc_conf(each.conf), capacity) is None)
        fitting = [each.fits for each in tried]
        assert fitting == sorted(fitting, reverse=True)  # what helps comes first


def test_a_record_is_kept_with_the_trace_it_was_made_of():
    with keeping() as kept:
        session = Session()
        with session:
            held = torch.zeros(9, device="cuda")
        record = summarise(session, name="x", program="x", started_s=0.0)
        del held
    assert trace_of(replace(record, notes=("more",)), kept) is session.tracker.trace
    assert trace_of(replace(record, timeline=()), kept) is None


# Terminal


@pytest.mark.parametrize("width", [44, 60, 80, 120])
@pytest.mark.parametrize("colour", [False, True])
def test_no_line_is_longer_than_the_terminal(run, width, colour):
    lines = ANSI.sub("", dryrun_text(run, Look(width, colour), explain=True)).splitlines()
    assert [line for line in lines if cells(line) > width] == []


def test_without_colour_there_are_no_codes_and_colour_changes_no_word(run):
    plain = dryrun_text(run, Look(80))
    painted = dryrun_text(run, Look(80, colour=True))
    assert "\x1b" not in plain
    assert painted.count("\x1b[0m") * 2 == painted.count("\x1b[")
    marks = str.maketrans(dict.fromkeys("█▓▒░▚▞▘·", "#"))
    assert ANSI.sub("", painted).translate(marks) == plain.translate(marks)


def test_a_terminal_without_unicode_gets_ascii(run):
    text = dryrun_text(run, Look(80, unicode=False), explain=True)
    assert text.isascii()
    assert "?" not in text.replace("? Takes", "")


def test_the_headline_is_the_verdict(runs):
    def headline(name):
        return " ".join(dryrun_text(runs[name], Look(120)).split("\n\n")[1].split())

    assert headline("none").startswith("? Takes ")
    assert re.match(
        r"✓ Fits: .* allocated at step 1, optimizer step .*, the Some Card leaves 1\.0 GiB to a job",
        headline("fits"),
    )
    assert headline("runs out").startswith("✗ Runs out of memory at ")
    assert "in model." in headline("runs out")
    assert "are missing." in headline("runs out")


def test_the_bar_and_the_modules_sum_exactly_to_the_peak(run):
    assert sum(piece.size_bytes for piece in pieces(run) if not piece.kept) == run.peak_allocated_bytes
    rows = dryrun_modules.rows(run.modules)
    assert sum(row.size_bytes for row in rows if row.depth == 0) == run.peak_allocated_bytes


def test_a_small_run_on_a_large_card_has_sizes_that_can_be_read(made):
    record, trace = made
    fits = finish(record, trace, Request(kind="model", name="x", capacity_bytes=24 * 1024 * MIB))
    shown = dryrun_text(fits, Look(80), explain=True)
    assert "24,576 MiB usable" in shown
    assert "<0.1" not in shown


def test_layers_that_are_alike_are_one_row():
    shares = [Share(name=f"model.layers.{n}.mlp", size_bytes=100) for n in range(40)]
    shares += [
        Share(name="model.embed", size_bytes=900),
        Share(name="head", size_bytes=90),
        Share(name="", size_bytes=10),
    ]
    rows = dryrun_modules.rows(shares)
    # 40 × 100 + 900 under "model"; the nameless one and the head beside it.
    assert [(row.depth, row.name, row.modules, row.size_bytes) for row in rows] == [
        (0, "model", 1, 4900),
        (1, "layers.*.mlp", 40, 4000),
        (1, "embed", 1, 900),
        (0, "head", 1, 90),
        (0, "outside any module", 1, 10),
    ]


def test_many_modules_are_summed_up():
    shares = [
        Share(name=f"part_{chr(97 + n)}.{inner}", size_bytes=1000 - n) for n in range(26) for inner in "xyz"
    ]
    rows = dryrun_modules.rows(shares)
    assert len(rows) <= dryrun_modules.ROWS
    assert sum(row.size_bytes for row in rows if row.depth == 0) == sum(share.size_bytes for share in shares)


def test_phases_lie_under_their_stretches(runs):
    text = dryrun_text(runs["fits"], Look(120))
    drawn = text.partition("Over the run")[2].partition("\n\n")[0].splitlines()
    axis = next(line for line in drawn if "└" in line)
    assert axis.count("┴") == len(columns(runs["fits"])) - 1
    assert all(len(line) <= 120 for line in drawn)
    assert any("step 1" in line and "step 2" in line for line in drawn)


def test_everything_that_was_asked_is_shown(runs):
    text = " ".join(dryrun_text(runs["full"], Look(120), explain=True).split())
    for words in (
        "Answered without data, 36 times", "and at 2 other places", "Left out: torch.save (3 times)", "Note: a note",
        "Attention kernels: flash (2 times)", "ranks 1-7", "← the worst", "Settings of the allocator", "(as run)",
        "Largest tensors at the peak", "(512, 512) float32", "model.*",
    ):  # fmt: skip
        assert words in text, words


def test_a_plan_beside_it_differs_by_what_is_said(runs):
    other = plan("Qwen/Qwen2.5-0.5B", vram="24GiB", seq=128)
    text = dryrun_text(runs["fits"], Look(120), plan=other)
    row = next(line for line in text.splitlines() if line.startswith("  peak"))
    percent = 100 * (other.ledger.peak.allocated.likely / runs["fits"].peak_allocated_bytes - 1)
    assert f"({percent:+.1f} %)" in row


def test_hostile_names_stay_words(runs):
    evil = replace(runs["full"], name=HOSTILE, program=HOSTILE, notes=(HOSTILE,), peak_module=HOSTILE)
    text = dryrun_text(evil, Look(80))
    assert "\x1b" not in text
    for page in (dryrun_html(evil), dryrun_page(evil)):
        assert "<script>alert" not in page
        assert "\x1b" not in page
    dryrun_png(evil)


# Nouns


def test_a_record_prints_in_a_line_and_in_full(runs):
    assert re.fullmatch(r"<DryRun four matrices, runs out of memory: .* reserved>", repr(runs["runs out"]))
    assert str(runs["fits"]) == dryrun_text(runs["fits"], Look(80)).rstrip()
    assert runs["fits"]._repr_html_() == dryrun_html(runs["fits"])
    assert (runs["none"].fits, runs["fits"].fits, runs["runs out"].fits) == (None, True, False)


# JSON


def test_json_decodes_as_its_records_and_is_the_run(run):
    other = plan("Qwen/Qwen2.5-0.5B", vram="24GiB", seq=128)
    text = dryrun_json(run, other)
    found = msgspec.json.decode(text, type=DryRunFields)
    assert text.startswith('{\n  "schema": "loadmaster.dryrun/1",\n  "verdict": ')
    assert found.schema == SCHEMA
    assert found.verdict == {None: None, True: "fits", False: "runs_out"}[run.fits]
    assert found.plan == other.ledger
    assert all(getattr(found, field) == getattr(run, field) for field in DryRun.__struct_fields__)


def test_the_schema_in_the_documentation_is_the_format():
    remake = "python -c 'from loadmaster.render.dryrun_json import *; print(json_schema(), end=\"\")' > docs/dryrun.schema.json"
    assert (DOCS / "dryrun.schema.json").read_text(encoding="utf-8") == json_schema(), remake


def test_every_field_of_the_schema_is_described():
    described = (DOCS / "dryrun.md").read_text(encoding="utf-8")
    assert [field for field in DryRunFields.__struct_fields__ if f"`{field}" not in described] == []


# HTML and PNG


class Balanced(HTMLParser):
    VOID = ("meta", "rect", "path", "br")

    def __init__(self):
        super().__init__()
        self.open, self.words = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_pages_are_whole_and_fetch_nothing(run):
    for page in (dryrun_html(run), dryrun_page(run)):
        parser = Balanced()
        parser.feed(page)
        assert parser.open == []
        assert not re.search(r"https?:|//|@import|url\(", re.sub(r"<script.*?</script>", "", page))
    words = html.unescape(dryrun_page(run))
    assert "color-scheme: light dark" in words
    assert 'content="width=device-width' in words
    assert "<script" not in dryrun_html(run)


def test_a_page_tells_every_moment(runs):
    page = dryrun_page(runs["fits"])
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1]
    assert len(msgspec.json.decode(data)) == len(runs["fits"].timeline)


def test_a_png_is_one_of_some_size(run):
    data = dryrun_png(run)
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    assert (width, height) == (1440, 744)


def test_dryrun_is_the_function_whatever_was_imported_before():
    import loadmaster.dryrun.session

    assert callable(loadmaster.dryrun)
    assert loadmaster.dryrun.__module__ == "loadmaster.workflows.dryrun"
