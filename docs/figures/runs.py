#!/usr/bin/env python3
"""Draws the figures of docs/concepts.md from simulated runs.

    docs/figures/runs.py blocks > docs/figures/blocks.svg

The figures are `blocks`, `limit` and `undo`. Each runs `wattle simulate` (of target/debug, or of the folder in
--programs) with the options in FIGURES, and reads the placements and the power from the report that the
command writes. Only Python's standard library is needed.
"""

import argparse
import html
import json
import re
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEMO = ["--trace", "deploy/demo/trace.csv", "--cluster", "2x4:v100", "--policy", "wattle"]
FIGURES = {
    "blocks": ("24 jobs on two nodes of four GPUs under `wattle`", DEMO, None, 15),
    "limit": ("The same jobs under a power limit of 1.4 kW", [*DEMO, "--power-kw", "1.4"], 1.4, 15),
    "undo": (
        "Three jobs on a node of two GPUs under `eaco`",
        ["--trace", "docs/figures/undo.csv", "--cluster", "1x2:v100", "--policy", "eaco"],
        None,
        34,
    ),
}
WIDTH, LEFT, RIGHT, TOP, BELOW, PLOT = 760, 62, 16, 40, 46, 110
COLOURS = ["#77aadd", "#ee8866", "#44bb99", "#eedd88", "#ffaabb", "#99ddff", "#bbcc33", "#c3b8a8"]
STYLE = """<style>
.paper { fill: #ffffff } .ink { fill: #1c1f24 } .soft { fill: #565c66 } .grid { stroke: #e0e3e8 } .free { fill: #eef0f3 }
.power { fill: #0067a5; fill-opacity: .25; stroke: #0067a5 } .other { fill: none; stroke: #565c66; stroke-dasharray: 3 3 }
.limit { stroke: #c44e00; stroke-width: 2 } .limit-text { fill: #b04600 } .edge { stroke: #ffffff }
@media (prefers-color-scheme: dark) {
.paper { fill: #1d2025 } .ink { fill: #e8eaed } .soft { fill: #a6acb6 } .grid { stroke: #363a42 } .free { fill: #2b2f36 }
.power { fill: #64b5f2; stroke: #64b5f2 } .other { stroke: #a6acb6 } .limit { stroke: #ff9a5c } .limit-text { fill: #ff9a5c } .edge { stroke: #1d2025 }
}
</style>"""


def simulate(programs, options):
    """A run as (seconds, rectangles of the map with titles, height of the map, power in kW over time)."""
    command = [str(programs / "wattle"), "simulate", *options]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.html"
        ran = subprocess.run([*command, "--json", "--report", str(report)], cwd=ROOT, check=True, capture_output=True, text=True)
        page = report.read_text()
    seconds = json.loads(ran.stdout)["policies"][0]["makespan_s"]
    area = page.split('aria-label="Jobs on each node over time"')[1].split("</svg></svg>")[0]
    height = float(re.search(r'viewBox="0 0 1000 ([\d.]+)"', area)[1])
    number = r'="([\d.]+)"'
    pattern = rf'<rect class="(\w+)" x{number} y{number} width{number} height{number}>(?:<title>(.*?)</title>)?'
    rectangles = [(kind, *map(float, values), html.unescape(title)) for kind, *values, title in re.findall(pattern, area)]
    label = page.index("power of all nodes, mean")
    numbers, plot = page[page.rindex('class="numbers"', 0, label) : label], page[label:]
    top = max(float(text) for text in re.findall(r">([\d.]+)</text>", numbers))
    bottom = float(re.search(r'viewBox="0 0 1000 ([\d.]+)"', plot)[1])
    path = re.search(r' under" d="M0 [\d.]+([^"]*)"', plot)[1]
    points, x = [], 0.0
    for step, value in re.findall(r"([HV])([\d.]+)", path):
        if step == "H":
            x = float(value)
        points.append((x / 1000 * seconds, (bottom - float(value)) / bottom * top if step == "V" else points[-1][1]))
    return seconds, rectangles, height, points


def text(x, y, words, kind="soft", anchor="middle", size=12, weight="400"):
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}">{html.escape(words)}</text>'


def label(box, found, later):
    """The name of a job in the part of its rectangle that no later one covers, as far as there is room."""
    left, top, span, high = box
    short = found[1] if found[1].isdigit() else f"{found[1]} ({found[2].removeprefix('eaco-')})"
    setting = f" {found[4]}" if found[4] else ""
    for words in (short + setting, short, found[1]):
        for across, down, part in ((0.5, 0.5, 1.0), (0.5, 0.25, 0.5), (0.25, 0.5, 1.0), (0.75, 0.5, 1.0), (0.25, 0.25, 0.5), (0.75, 0.25, 0.5)):
            size = min(12, high * part - 2)
            wide = 0.62 * size * len(words)
            x, y = left + across * span, top + down * high
            room = 2 * min(across, 1 - across) * span
            hidden = any(x - wide / 2 < a + c and a < x + wide / 2 and y - size / 2 < b + d and b < y + size / 2 for a, b, c, d in later)
            if size >= 7 and room > wide and not hidden:
                place = f'x="{x:.1f}" y="{y + size * 0.36:.1f}" fill="#15171b" text-anchor="middle" font-size="{size:.0f}"'
                return [f"<text {place}>{html.escape(words)}</text>"]
    return []


def draw(name, programs):
    title, options, limit, row = FIGURES[name]
    seconds, rectangles, height, power = simulate(programs, options)
    free = [rectangle for rectangle in rectangles if rectangle[0] == "free"]
    # One row of the report's map is a GPU.
    gpus = 4 if "2x4" in " ".join(options) else 2
    scale = row / (free[0][4] / gpus)
    map_top = TOP + (PLOT + 34 if limit else 0)
    end = map_top + height * scale
    total = end + BELOW

    def x(second):
        return LEFT + second / seconds * (WIDTH - LEFT - RIGHT)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total:.0f}" font-family="system-ui, sans-serif" role="img" aria-label="{html.escape(title)}">',
        STYLE,
        f'<rect class="paper" width="{WIDTH}" height="{total:.0f}" rx="6"/>',
        text(LEFT, 22, title.replace("`", ""), "ink", "start", 15, "600"),
    ]
    step = next(step for step in (600, 1200, 1800, 3600, 7200, 14400) if seconds / step < 10)
    for second in range(0, int(seconds) + 1, step):
        out.append(f'<line x1="{x(second):.1f}" x2="{x(second):.1f}" y1="{TOP}" y2="{end:.1f}" class="grid"/>')
        shown = f"{second // 60}" if seconds < 4 * 3600 else f"{second / 3600:g}"
        out.append(text(x(second), end + 17, shown))
    out.append(text((LEFT + WIDTH - RIGHT) / 2, end + 36, "time, min" if seconds < 4 * 3600 else "time, h", "ink"))
    if limit:
        most, base = 2.5, TOP + PLOT
        y = lambda kw: base - kw / most * PLOT
        for kw in (0, 0.5, 1.0, 1.5, 2.0, 2.5):
            out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(kw):.1f}" y2="{y(kw):.1f}" class="grid"/>')
            out.append(text(LEFT - 8, y(kw) + 4, f"{kw:g}", anchor="end"))
        out.append(f'<text x="16" y="{TOP + PLOT / 2:.1f}" class="ink" text-anchor="middle" font-size="12" transform="rotate(-90 16 {TOP + PLOT / 2:.1f})">power, kW</text>')
        line = lambda points: " ".join(f"{x(min(s, seconds)):.1f},{y(kw):.1f}" for s, kw in points if s <= seconds)
        out.append(f'<polygon points="{x(0):.1f},{base} {line(power)} {x(power[-1][0]):.1f},{base}" class="power"/>')
        without = simulate(programs, FIGURES["blocks"][1])[3]
        out.append(f'<polyline points="{line(without)}" class="other"/>')
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(limit):.1f}" y2="{y(limit):.1f}" class="limit"/>')
        out.append(text(WIDTH - RIGHT - 4, y(limit) - 6, f"limit {limit} kW", "limit-text", "end", 12, "600"))
        out.append(text(WIDTH - RIGHT - 4, y(2.3), "dashed: without a limit", "soft", "end"))
    nodes = len(free)
    for node, (_, _, top, width, tall, _) in enumerate(free):
        out.append(f'<rect class="free" x="{LEFT}" y="{map_top + top * scale:.1f}" width="{width / 1000 * (WIDTH - LEFT - RIGHT):.1f}" height="{tall * scale:.1f}"/>')
        for gpu in range(gpus):
            gpu_name = f"n{node} GPU {gpu}" if nodes > 1 else f"GPU {gpu}"
            out.append(text(LEFT - 6, map_top + (top + (gpu + 0.5) * tall / gpus) * scale + 4, gpu_name, anchor="end", size=10))
    boxes = []
    for kind, left, top, width, tall, words in rectangles:
        found = re.match(r"(\S+) \((\S+)\): (\d+ GPUs?)(?: at ([^,]+))?, .*", words)
        if kind == "free" or not found:
            continue
        box = LEFT + left / 1000 * (WIDTH - LEFT - RIGHT), map_top + top * scale, width / 1000 * (WIDTH - LEFT - RIGHT), tall * scale
        boxes.append((box, found))
        out.append(
            '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" '.format(*box)
            + f'fill="{COLOURS[int(kind[1:])]}" class="edge"><title>{html.escape(words)}</title></rect>'
        )
    for number, (box, found) in enumerate(boxes):
        # A later rectangle covers the lower part of the jobs with which its job shares.
        out += label(box, found, [later for later, _ in boxes[number + 1 :]])
    out.append("</svg>")
    return "\n".join(out)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("figure", choices=FIGURES)
    options.add_argument("--programs", type=Path, default=ROOT / "target" / "debug")
    options = options.parse_args()
    print(draw(options.figure, options.programs.resolve()))


if __name__ == "__main__":
    main()
