"""What a plan looks like: on terminals, in notebooks, as JSON."""

import html
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.hardware import Absent, Host, Machine
from loadmaster.plan.rules_of_thumb import largest_batch, rules_of_thumb
from loadmaster.plan.search import Search
from loadmaster.records import replace
from loadmaster.render.bar import Piece, bar
from loadmaster.render.plan import plan_text
from loadmaster.render.plan_html import plan_html
from loadmaster.render.plan_json import SCHEMA, PlanFields, json_schema, plan_json
from loadmaster.render.sizes import apart, scale_of, share
from loadmaster.render.terminal import GLUE, Look, cells, clip, look_of, plain, table, wrap
from loadmaster.units import GIB, MIB
from loadmaster.workflows.plan import plan as plan_function

DOCS = Path(__file__).parents[2] / "docs"
ANSI = re.compile(r"\x1b\[[0-9;]*m")
HOSTILE = "<script>alert(1)</script>&\"'\x1b[31m\n"


@pytest.mark.parametrize("width", [44, 60, 80, 100, 120])
@pytest.mark.parametrize("colour", [False, True])
def test_no_line_is_longer_than_the_terminal(plan, width, colour):
    text = plan_text(plan, Look(width, colour), explain=True, rule_of_thumb=True)
    lines = ANSI.sub("", text).splitlines()
    # A command's first words (the program, the model) stay together.
    assert [line for line in lines if cells(line) > width and "loadmaster plan" not in line] == []
    assert all(cells(line) <= width for line in lines if width >= 80)


@pytest.mark.parametrize("width", [44, 80, 120])
def test_a_number_and_its_unit_stay_on_one_line(plan, width):
    for line in plan_text(plan, Look(width), explain=True).splitlines():
        assert not re.match(r"\s*(GiB|MiB|KiB|TiB|B|%|tokens)\b", line), line


def test_without_colour_there_are_no_codes_and_with_it_only_known_ones(plan):
    assert "\x1b" not in plan_text(plan, Look(80, colour=False))
    painted = plan_text(plan, Look(80, colour=True))
    assert ANSI.sub("", painted).count("\x1b") == 0
    assert painted.count("\x1b[0m") * 2 == painted.count("\x1b[")


def test_colour_changes_no_word(plan):
    words = ANSI.sub("", plan_text(plan, Look(80, colour=True)))
    marks = str.maketrans(dict.fromkeys("█▓▒░▚▞▘·", "#"))
    assert words.translate(marks) == plan_text(plan, Look(80)).translate(marks)


def test_a_terminal_without_unicode_gets_ascii(plan):
    text = plan_text(plan, Look(80, unicode=False), explain=True, rule_of_thumb=True)
    assert text.isascii()
    assert "?" not in re.sub(r"\? No GPU", "", text)


def test_the_headline_says_what_is_needed_where_and_by_how_much(plans):
    assert first_words(plans["does not fit"]).startswith("✗ Does not fit: needs ")
    assert (
        "allocated at backward (loss and output projection), the RTX 4090 leaves 23.3 GiB to a job;"
        in first_words(plans["does not fit"])
    )
    assert first_words(plans["does not fit"]).endswith("are missing.")
    assert re.match(r"✓ Fits: needs .* allocated at .* stay free\.", first_words(plans["fits"]))
    assert first_words(plans["tight"]).startswith("! Tight: ")
    assert re.search(r" [\d,]+\.\d GiB are missing\.$", first_words(plans["nothing fits"]))


def test_a_plan_has_one_unit_for_all_that_is_large(plans):
    text = plan_text(plans["nothing fits"], Look(120))
    assert "TiB" not in text.replace("TiB of", "")
    assert "GPU memory at optimizer step, GiB" in text


def first_words(plan):
    """The headline as one line."""
    return " ".join(plan_text(plan, Look(120)).split("\n\n")[1].split())


def test_the_three_conventions_ram_and_assumptions_are_always_there(plan):
    text = plan_text(plan, Look(80))
    for word in (
        "allocated",
        "reserved",
        "process total",
        "nvidia-smi",
        "likely",
        "RAM",
        "Assumed",
        "attention",
    ):
        assert word in text


def test_the_ladder_ends_in_a_command(plans):
    text = plan_text(plans["does not fit"], Look(80))
    assert "It fits with" in text
    assert "loadmaster plan Qwen/Qwen2.5-7B --gpu rtx4090" in text
    assert "No change or combination here makes it fit this card" in plan_text(
        plans["nothing fits"], Look(80)
    )


def test_explain_prints_every_entry_with_formula_and_source(plans):
    plan = plans["does not fit"]
    text = " ".join(plan_text(plan, Look(120), explain=True).split())
    for entry in plan.ledger.entries:
        assert " ".join(f"= {entry.formula}".split()) in text
        assert " ".join(f"source: {entry.source}".split()) in text


def test_explain_says_how_sums_and_bounds_come_about(plan):
    lines = plan_text(plan, Look(120), explain=True).splitlines()
    entries = [line for line in lines if line.startswith("    = ")]
    assert len(entries) == len(plan.ledger.entries) + 3  # and the three sums
    assert sum(line.startswith("    source: ") for line in lines) == len(plan.ledger.entries)
    text = " ".join(" ".join(lines).split())
    for words in (
        "How the peak comes about allocated: ", "reserved: ", "CUDACachingAllocator.cpp", "process total: ",
        "of CUDA context (below)", "bounds: buffers beside the parameters",
    ):  # fmt: skip
        assert words in text
    for section in ("How the peak comes about", "What the card leaves: "):
        assert (
            sum(line.startswith(section) for line in lines) == 1
        )  # a section of its own, not part of another


def test_entries_are_in_an_order_that_depends_on_nothing_but_themselves(plan):
    for tier, phase in {(entry.tier, entry.phase) for entry in plan.ledger.entries}:
        if tier == "vram":
            found = [e for e in plan.ledger.entries if (e.tier, e.phase) == (tier, phase)]
            assert found == sorted(found, key=lambda e: (-e.bytes.likely, e.component))


def test_what_is_not_counted_is_said_beside_the_verdict(plans):
    plan = plans["fits"]
    lacking = replace(plan, ledger=replace(plan.ledger, warnings=("activations of vision are not counted",)))
    assert first_words(lacking).endswith("stay free. Beware: activations of vision are not counted")
    page = plan_html(lacking)
    assert "Beware: activations of vision are not counted" in page
    assert page.index("Beware") < page.index("GPU memory at")


def test_a_machine_without_a_gpu():
    here = Machine(
        host=Host(ram_total_bytes=GIB, ram_available_bytes=GIB),
        absent=(Absent(vendor="NVIDIA", reason="no driver here"),),
    )
    plan = plan_function("Qwen/Qwen2.5-7B", task="infer", machine=here)
    text = " ".join(plan_text(plan, Look(120)).split())
    assert "no GPU here, so this is about its CPU and RAM; name a card with --gpu" in text
    assert "Memory at prefill" in text
    assert "nvidia" not in text.lower().replace("(nvidia: no driver", "")
    assert "no driver here" in text
    assert "RAM is not enough" in text or "RAM is tight" in text
    fields = msgspec.json.decode(plan_json(plan))
    assert (fields["verdict"], fields["device"]["vendor"]) == ("does_not_fit", "CPU")
    assert fields["ram"]["available_bytes"] == GIB
    assert "RAM is" in plan_html(plan)


# The bar


def test_small_components_are_counted_where_they_are_many():
    many = [Piece("weights", 1000 * GIB), *(Piece(f"{name} of some kind", GIB) for name in "abcdef")]
    text = "\n".join(bar(many, None, Look(80), scale_of(1006 * GIB)))
    assert "a of some kind + b of some kind + 4 more" in text
    assert "…" not in text
    assert "6 small ones" in "\n".join(bar(many, None, Look(44), scale_of(1006 * GIB)))
    few = [many[0], *(Piece(name, GIB) for name in ("adapters", "workspace", "inputs"))]
    assert "adapters + workspace + inputs " in "\n".join(bar(few, None, Look(80), scale_of(1003 * GIB)))


def test_the_bar_is_to_scale_and_marks_the_limit():
    look = Look(84)
    lines = bar([Piece("a", 60 * GIB), Piece("b", 20 * GIB)], 40 * GIB, look, scale_of(80 * GIB))
    assert len(lines[0]) == 82
    assert lines[0].index("│") == 2 + 40
    assert lines[0].count("█") == 60 - 1
    assert lines[0].count("▓") == 20
    assert "40.0 GiB usable" in lines[1]


@given(
    st.lists(st.integers(0, 2**50), min_size=1, max_size=12), st.one_of(st.none(), st.integers(0, 2**50)),
    st.integers(44, 120), st.booleans(), st.booleans(),
)  # fmt: skip
@settings(deadline=None, max_examples=100)
def test_a_bar_is_never_wider_than_the_terminal(sizes, limit, width, colour, unicode):
    pieces = [Piece(f"component {i}", size, kept=i == 11) for i, size in enumerate(sizes)]
    for line in bar(pieces, limit, Look(width, colour, unicode), scale_of(max(sizes))):
        assert cells(ANSI.sub("", line)) <= width


# Text


@given(st.text(max_size=200), st.integers(8, 120))
@settings(deadline=None)
def test_wrapped_lines_fit_and_lose_nothing(text, width):
    text = plain(text).replace(GLUE, " ")
    lines = wrap(text, width)
    assert all(cells(line) <= width for line in lines)
    assert "".join("".join(lines).split()).replace(GLUE, "") == "".join(text.split()).replace(GLUE, "")


def test_wrap_keeps_number_and_unit_together():
    assert wrap("needs 55.9 GiB now", 12) == ["needs", f"55.9{GLUE}GiB now"]
    assert wrap("batch 1 × 4,096 tokens", 16) == ["batch", f"1{GLUE}×{GLUE}4,096{GLUE}tokens"]


def test_wide_characters_take_two_columns():
    assert cells("模型") == 4
    assert wrap("模型模型", 5) == ["模型", "模型"]
    assert clip("模型模型", 5) == "模型…"


def test_a_table_gives_a_long_last_cell_lines_of_its_own_where_there_is_no_room():
    lines = table([[("a" * 25, ""), ("b" * 30, "")]], Look(40))
    assert lines == ["  " + "a" * 25 + "  ", "    " + "b" * 30]


@pytest.mark.parametrize(
    ("environment", "terminal", "expected"),
    [
        ({}, False, (80, False)),
        ({"COLUMNS": "120"}, False, (120, False)),
        ({"COLUMNS": "9999"}, True, (120, True)),
        ({"COLUMNS": "10"}, True, (44, True)),
        ({"COLUMNS": "x"}, False, (80, False)),
        ({"COLUMNS": "80", "NO_COLOR": "1"}, True, (80, False)),
        ({"COLUMNS": "80", "TERM": "dumb"}, True, (80, False)),
    ],
)
def test_what_a_stream_can_show(environment, terminal, expected, monkeypatch):
    for name in ("COLUMNS", "NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)
    look = look_of(stream)
    assert (look.width, look.colour) == expected
    assert look.unicode


def test_an_encoding_that_is_not_unicode_is_seen():
    assert not look_of(io.TextIOWrapper(io.BytesIO(), encoding="ascii")).unicode
    assert not look_of(io.TextIOWrapper(io.BytesIO(), encoding="latin-1")).unicode


def test_sizes():
    assert scale_of(GIB).size(30 * MIB) == "30 MiB"
    assert scale_of(100 * GIB).size(1234 * GIB) == "1,234.0 GiB"
    assert scale_of(100 * GIB).number(MIB) == "<0.1"
    assert scale_of(100 * GIB).number(0) == "0.0"
    assert (apart(3 * MIB), apart(2000 * GIB), apart(-GIB), apart(5)) == (
        "3.0 MiB",
        "2,000.0 GiB",
        "-1.0 GiB",
        "5 B",
    )
    assert (share(1, 1000), share(1, 2), share(0, 5), share(1, 0)) == ("<1 %", "50 %", "0 %", "")


# HTML


class Page(HTMLParser):
    """Collects tags and text, and sees that tags are closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.text = [], set(), ""

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_a_notebook_shows_a_table(plan):
    page = Page()
    page.feed(plan._repr_html_())
    assert page.open == []
    assert page.tags <= {"div", "table", "tr", "td", "pre", "span", "strong"}
    assert plan.model.name in page.text
    assert f"on {plan.device.name}" in page.text.replace(GLUE, " ")
    for phase in plan.ledger.phases:
        assert phase.phase in page.text
    for word in ("allocated", "reserved", "process total", "RAM", "Assumed"):
        assert word in page.text


def test_a_notebook_says_what_the_terminal_says(plan):
    page = Page()
    page.feed(plan_html(plan))
    shown, terminal = page.text.replace(GLUE, " "), plan_text(plan, Look(120))
    for mark in ("✓ fits", "! tight"):
        assert shown.count(mark) == terminal.count(mark)
    legend = re.findall(r"^  \S  (\S.*?) {2,}\S+ +(<?\d+ %)$", terminal, re.MULTILINE)
    assert legend
    for name, part in legend:
        assert re.search(re.escape(name) + r"[<\d.,]+ [KMGT]iB" + re.escape(part), shown), (name, part)
    if plan.fitting is not None:
        command = shown[shown.index("loadmaster plan ") :].partition("Assumed")[0].partition("Note")[0]
        assert (
            command.split()
            == terminal[terminal.index("  loadmaster plan ") :].split("\n\n")[0].replace("\\\n", " ").split()
        )


def test_in_a_notebook_a_number_and_its_unit_stay_together(plan):
    page = plan_html(plan)
    for cell in re.findall(r'<td style="([^"]*)">(?:<\w+[^>]*>)*[<\d.,]+ [KMGT]iB', page):
        assert "white-space:nowrap" in cell
    sentences = re.sub(r"<td.*?</td>|<pre.*?</pre>|<div style=\"[^\"]*nowrap\">[^<]*", "", page)
    assert not re.search(r"\d (?:[KMGT]iB|tokens|%)", sentences)


def test_the_only_line_of_a_plan_in_a_plain_shell(plan, plans):
    assert "\n" not in repr(plan)
    assert len(repr(plan)) < 200
    assert str(plan) == repr(plan)
    assert re.fullmatch(
        r"<Plan Qwen/Qwen2.5-7B on RTX 4090 \(23\.3 GiB usable\): does not fit, [\d.]+ GiB allocated at backward>",
        repr(plans["does not fit"]),
    )
    assert " tight, " in repr(plans["tight"])


def test_a_hostile_name_is_only_text(plans):
    plan = plans["does not fit"]
    hostile = replace(plan, model=replace(plan.model, name=HOSTILE), notes=(HOSTILE,))
    page = Page()
    page.feed(plan_html(hostile))
    assert "script" not in page.tags
    assert html.escape("<script>") in plan_html(hostile)
    text = plan_text(hostile, Look(80))
    assert "\x1b" not in text
    assert all(len(line) <= 80 for line in text.splitlines())


# JSON


def test_json_is_the_plan(plan):
    fields = msgspec.json.decode(plan_json(plan))
    assert fields["schema"] == SCHEMA
    assert fields["verdict"] == plan.verdict
    assert fields["device"]["usable_bytes"] == plan.usable_bytes.likely
    peak = fields["peak"]
    for name in ("allocated", "reserved", "process"):
        assert peak[name]["low"] <= peak[name]["likely"] <= peak[name]["high"]
    at_peak = [e for e in fields["entries"] if e["phase"] == peak["phase"] and e["tier"] == "vram"]
    assert sum(e["bytes"]["likely"] for e in at_peak) == peak["allocated"]["likely"]
    assert fields["ram"]["likely"] == plan.ledger.ram.likely
    assert fields["assumptions"]
    assert len(fields["ladder"]) == len(plan.ladder)


def test_json_decodes_as_its_records_and_nothing_else(plan):
    text = plan_json(plan, rules_of_thumb(plan))
    assert msgspec.json.decode(text, type=PlanFields).verdict == plan.verdict


def test_the_schema_in_the_documentation_is_the_format():
    remake = "python -c 'from loadmaster.render.plan_json import *; print(json_schema(), end=\"\")' > docs/plan.schema.json"
    assert (DOCS / "plan.schema.json").read_text(encoding="utf-8") == json_schema(), remake


def test_every_field_of_the_schema_is_described():
    described = (DOCS / "json.md").read_text(encoding="utf-8")
    assert [field for field in PlanFields.__struct_fields__ if f"`{field}" not in described] == []


# Rules of thumb


def test_differences_of_a_rule_add_up_to_the_gap(plan):
    for rule in rules_of_thumb(plan):
        if rule.differences:
            assert sum(d.bytes for d in rule.differences) == rule.ledger - rule.says


def test_rules_say_what_people_say(plans):
    training, ram, batch = rules_of_thumb(plans["does not fit"])
    assert training.says == 7_615_616_512 * 8
    assert ram.says == 2 * plans["does not fit"].usable.visible_bytes.likely
    assert batch.ledger == 0
    inference, _ = rules_of_thumb(plans["fits"])
    assert inference.says == pytest.approx(plans["fits"].ledger.at("load")[0].bytes.likely * 1.2, rel=0.01)


def test_the_largest_batch_is_the_last_that_fits(plans):
    plan = plans["tight"]
    search = Search(plan.model, plan.usable, plan.device)
    job = replace(plan.job, seq_len=256)
    most = largest_batch(search, job)
    assert search.peak_bytes(replace(job, micro_batch=most)) <= search.limit_bytes
    assert search.peak_bytes(replace(job, micro_batch=most + 1)) > search.limit_bytes
