"""Writes the tables of docs/performance.md and the plot docs/performance.svg from bench/results/tables.json.

    python3 bench/plot_tables.py            # writes the plot and replaces the tables in the page
    python3 bench/plot_tables.py --check    # ends with 1 if the page or the plot differs

Standard library only.
"""
import html
import json
import math
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
TABLES = ROOT / "bench" / "results" / "tables.json"
PAGE = ROOT / "docs" / "performance.md"
PLOT = ROOT / "docs" / "performance.svg"
COLOURS = ("#2f6f9f", "#c2703d", "#5b8c5a", "#8b6fa8")
LABELS, UNIT, BAR, GAP, TOP = 360, 80, 12, 14, 60
FIRST, LAST = 0.5, 128.0  # the axis is logarithmic: one UNIT for each factor of two


def table(rows, machine):
    """Returns the Markdown table of one machine."""
    lines = ["| row | Quire | best peer | ratio | of the floor | record |", "| --- | --- | --- | --- | --- | --- |"]
    for row, (quire, peer, name, ratio, floor, day) in zip(rows, machine["cells"], strict=True):
        if not ratio:
            continue
        record = f"[{day}](../bench/journal/{day}.md)"
        cells = (row, quire, f"{name} {peer}".strip(), ratio, floor, record)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(re.sub(" +", " ", line) for line in lines)


def page(text, tables):
    """Returns the page with the table behind each `<!-- table: NAME -->` replaced."""
    for machine in tables["machines"]:
        mark = f"<!-- table: {machine['name']} -->\n\n"
        pattern = re.compile(re.escape(mark) + r"(?:\|.*\n)*")
        if not pattern.search(text):
            raise ValueError(f"{PAGE}: no {mark.strip()}")
        text = pattern.sub(lambda _, new=mark + table(tables["rows"], machine) + "\n": new, text)
    return text


def place(ratio):
    """Returns where a ratio lies on the axis, in pixels from its left end."""
    return LABELS + UNIT * math.log2(min(ratio, LAST) / FIRST)


def plot(tables):
    """Returns the bars of all rows and machines as SVG."""
    machines = tables["machines"]
    row_height = BAR * len(machines) + GAP
    height = TOP + row_height * len(tables["rows"]) + 10
    width = place(LAST) + 40
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" font-family="sans-serif" font-size="11">',
           f'<rect width="{width:.0f}" height="{height}" fill="white"/>',
           '<text x="10" y="18" font-size="13">Speed of Quire over the best peer, by row (logarithmic; 1 is equal)</text>']
    for i, machine in enumerate(machines):
        x = 10 + 150 * i
        out.append(f'<rect x="{x}" y="28" width="10" height="10" fill="{COLOURS[i]}"/>')
        out.append(f'<text x="{x + 15}" y="37">{html.escape(machine["name"])}</text>')
    for power in range(-1, 8):
        x = place(2.0**power)
        colour = "#444" if power == 0 else "#ddd"
        out.append(f'<line x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{height - 8}" stroke="{colour}"/>')
        out.append(f'<text x="{x:.1f}" y="{TOP - 8}" text-anchor="middle" fill="#666">{2.0**power:g}</text>')
    for number, row in enumerate(tables["rows"]):
        y = TOP + number * row_height
        out.append(f'<text x="10" y="{y + row_height / 2:.1f}">{html.escape(row)}</text>')
        for i, machine in enumerate(machines):
            ratio = machine["cells"][number][3]
            if not ratio:
                continue
            left, right = sorted((place(1.0), place(float(ratio))))
            out.append(f'<rect x="{left:.1f}" y="{y + i * BAR}" width="{max(right - left, 1):.1f}" height="{BAR - 2}" fill="{COLOURS[i]}"/>')
            out.append(f'<text x="{right + 4:.1f}" y="{y + i * BAR + 9}" font-size="9">{ratio}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    tables = json.loads(TABLES.read_text())
    new = {PAGE: page(PAGE.read_text(), tables), PLOT: plot(tables)}
    if "--check" not in sys.argv:
        for path, text in new.items():
            path.write_text(text)
        return 0
    differing = [str(path.relative_to(ROOT)) for path, text in new.items() if not path.exists() or path.read_text() != text]
    print("\n".join(f"{path}: run bench/plot_tables.py" for path in differing) or "tables ok")
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())
