"""A DryRun as a page of its own (``--picture out.html``): nothing is fetched, light or dark as the reader has it; pointing at the
chart tells the moment."""

from __future__ import annotations

import json

from loadmaster.dryrun.events import CATEGORIES
from loadmaster.dryrun.result import DryRun
from loadmaster.render.dryrun_chart import shown_categories
from loadmaster.render.dryrun_html import dryrun_html
from loadmaster.render.dryrun_words import place, scale_for
from loadmaster.render.html_parts import text

_STYLE = """
:root { color-scheme: light dark; }
body { margin: 1.2em auto; padding: 0 1em; max-width: 70em; font: 15px/1.45 system-ui, sans-serif;
       background: Canvas; color: CanvasText; }
.chart { touch-action: pan-y; cursor: crosshair; }
#moment { position: fixed; pointer-events: none; display: none; padding: .5em .7em; border: 1px solid #8888; border-radius: .3em;
          background: Canvas; color: CanvasText; font-size: 85%; white-space: pre; max-width: 90vw; z-index: 2; }
#cursor { position: absolute; top: 0; bottom: 0; width: 1px; background: currentColor; opacity: .6; display: none; }
"""
_SCRIPT = """
const data = JSON.parse(document.getElementById("data").textContent);
const chart = document.querySelector(".chart"), box = document.getElementById("moment"), cursor = document.createElement("div");
cursor.id = "cursor";
if (chart) {
  chart.append(cursor);
  const leave = () => { box.style.display = cursor.style.display = "none"; };
  const show = event => {
    const frame = chart.getBoundingClientRect(), share = (event.clientX - frame.left) / frame.width;
    const moment = data[Math.max(0, Math.min(data.length - 1, Math.floor(share * data.length)))];
    box.textContent = moment;
    box.style.display = cursor.style.display = "block";
    cursor.style.left = `${100 * share}%`;
    const right = window.innerWidth - box.offsetWidth - 8;
    box.style.left = `${Math.max(8, Math.min(event.clientX + 14, right))}px`;
    box.style.top = `${Math.max(8, Math.min(event.clientY + 14, window.innerHeight - box.offsetHeight - 8))}px`;
  };
  chart.addEventListener("pointermove", show);
  chart.addEventListener("pointerdown", show);
  chart.addEventListener("pointerleave", leave);
}
"""


def dryrun_page(run: DryRun) -> str:
    """The whole page."""
    data = json.dumps(_moments(run)).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(run.name)}: dry run</title><style>{_STYLE}</style></head>\n"
        f'<body>{dryrun_html(run)}<div id="moment"></div>\n'
        f'<script type="application/json" id="data">{data}</script><script>{_SCRIPT}</script></body></html>\n'
    )


def _moments(run: DryRun) -> list[str]:
    """What is told of each moment."""
    scale = scale_for(run)
    told = []
    for moment in run.timeline:
        lines = [
            f"{place(run, moment.step, moment.phase)}, event {moment.event:,}",
            f"{scale.size(moment.allocated_bytes)} allocated, {scale.size(moment.reserved_bytes)} reserved",
        ]
        held = [
            (moment.by_category[at], CATEGORIES[at]) for at in shown_categories(run) if moment.by_category[at]
        ]
        lines += [f"{scale.size(size):>12}  {name}" for size, name in sorted(held, reverse=True)]
        told.append("\n".join(lines))
    return told
