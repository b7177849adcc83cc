"""Draws docs/architecture.svg: the modules of tools/layers.toml, each above all that it includes.

    python3 tools/draw_architecture.py [ROOT]

An arrow goes from a module to one that it includes. An arrow is left out where a path of others says the same: engine
includes base, and so does all between them. tests/tools/test_architecture.py compares the file with this drawing.
"""

import itertools
import math
import pathlib
import sys
import tomllib
from xml.sax.saxutils import escape

BOX_WIDTH, BOX_HEIGHT, TOP_WIDTH, GAP, FLOOR, MARGIN = 104, 34, 300, 26, 78, 24
SWEEPS = 12
TOP = ["apps · bindings/python · examples", "include/quire"]  # what stands on the modules, from the top
STYLE = """
  text { font: 14px ui-monospace, Menlo, Consolas, monospace; fill: #1d2733; text-anchor: middle; }
  rect { fill: #eef3f8; stroke: #4a6178; stroke-width: 1.2; }
  rect.public { fill: #fdf4e3; stroke: #9a7430; }
  path { fill: none; stroke: #7d8fa1; stroke-width: 1.2; marker-end: url(#tip); }
"""


def direct_uses(may_use):
    """Returns {module: modules that it includes and that no other of them reaches}."""
    below = {}
    for module, uses in may_use.items():
        below[module] = set(uses).union(*(below[use] for use in uses))
    return {module: [use for use in uses if not any(use in below[other] for other in uses)] for module, uses in may_use.items()}


def floors_of(uses):
    """Returns [floor][place] of modules: a module stands one floor above the highest that it includes."""
    floor = {}
    for module, below in uses.items():
        floor[module] = 1 + max((floor[use] for use in below), default=-1)
    return [[module for module in uses if floor[module] == number] for number in range(max(floor.values()) + 1)]


def with_corners(uses, floors):
    """Returns arrows of one floor each: a long arrow turns at a corner, (from, to, floor), on each floor that it passes."""
    floors = [list(floor) for floor in floors]
    number = {module: i for i, floor in enumerate(floors) for module in floor}
    arrows, steps = [], []
    for module, below in uses.items():
        for use in below:
            corners = [(module, use, at) for at in range(number[module] - 1, number[use], -1)]
            for corner in corners:
                floors[corner[2]].append(corner)
            arrows.append([module, *corners, use])
            steps += itertools.pairwise(arrows[-1])
    return floors, arrows, steps


def crossings(floors, steps):
    place = {node: i for floor in floors for i, node in enumerate(floor)}
    number = {node: i for i, floor in enumerate(floors) for node in floor}
    return sum((place[a] - place[c]) * (place[b] - place[d]) < 0
               for (a, b), (c, d) in itertools.combinations(steps, 2) if number[a] == number[c])


def untangled(floors, steps):
    """Returns the order with fewest crossings that sweeps up and down find: each node goes to the mean place of its
    neighbours."""
    above, below = {}, {}
    for high, low in steps:
        below.setdefault(high, []).append(low)
        above.setdefault(low, []).append(high)
    best = floors = [list(floor) for floor in floors]
    for sweep in range(SWEEPS):
        neighbours = below if sweep % 2 == 0 else above
        ordered = []
        for floor in floors if sweep % 2 == 0 else reversed(floors):
            share = {node: (i + 0.5) / len(near) for near in ordered[-1:] for i, node in enumerate(near)}
            means = {node: [share[n] for n in neighbours.get(node, []) if n in share] for node in floor}
            ordered.append(sorted(floor, key=lambda node: (math.fsum(means[node]) / len(means[node]) if means[node]
                                                           else (floor.index(node) + 0.5) / len(floor))))
        floors = ordered if sweep % 2 == 0 else ordered[::-1]
        if crossings(floors, steps) < crossings(best, steps):
            best = floors
    return best


def size_of(node):
    return BOX_WIDTH if isinstance(node, str) else 0


def placed(wanted, floor):
    """Returns places of one floor near those that are wanted, with a gap between neighbours: the mean of pushing right and
    pushing left."""
    rights, lefts = [], []
    for node in floor:
        least = rights[-1][1] + (size_of(rights[-1][0]) + size_of(node)) / 2 + GAP if rights else wanted[node]
        rights.append((node, max(wanted[node], least)))
    for node in reversed(floor):
        most = lefts[-1][1] - (size_of(lefts[-1][0]) + size_of(node)) / 2 - GAP if lefts else wanted[node]
        lefts.append((node, min(wanted[node], most)))
    return {node: (right + left) / 2 for (node, right), (_, left) in zip(rights, reversed(lefts))}


def centres(floors, steps):
    """Returns {node: x}: each node near the mean of its neighbours, the leftmost box at the margin."""
    near = {node: [] for floor in floors for node in floor}
    for high, low in steps:
        near[high].append(low)
        near[low].append(high)
    x = {}
    for floor in floors:
        x |= placed(dict.fromkeys(floor, 0), floor)
    for sweep in range(SWEEPS):
        for floor in floors if sweep % 2 == 0 else reversed(floors):
            x |= placed({node: math.fsum(x[n] for n in near[node]) / len(near[node]) if near[node] else x[node] for node in floor}, floor)
    left = min(x[node] - size_of(node) / 2 for node in x)
    return {node: round(at - left) + MARGIN for node, at in x.items()}


def draw(may_use):
    """Draws the picture as the text of an SVG file."""
    uses = direct_uses(may_use)
    floors, arrows, steps = with_corners(uses, floors_of(uses))
    floors = untangled(floors, steps)
    x = centres(floors, steps)
    middle, half = x[floors[-1][0]], BOX_HEIGHT // 2
    width = max(max(x[node] + size_of(node) // 2 for node in x), middle + TOP_WIDTH // 2) + MARGIN
    height = 2 * MARGIN + FLOOR * (len(floors) + len(TOP) - 1) + BOX_HEIGHT
    y = {node: height - MARGIN - half - FLOOR * i for i, floor in enumerate(floors) for node in floor}
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
             "<title>The modules of Quire, each above all that it includes</title>", f"<style>{STYLE}</style>",
             '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
             '<path d="M0 0 L8 4 L0 8 z" style="fill:#7d8fa1;stroke:none"/></marker></defs>',
             '<rect x="0" y="0" width="100%" height="100%" style="fill:#ffffff;stroke:none"/>']
    for i, name in enumerate(TOP):
        top = MARGIN + FLOOR * i
        lines += [f'<rect class="public" x="{middle - TOP_WIDTH // 2}" y="{top}" width="{TOP_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>',
                  f'<text x="{middle}" y="{top + half + 5}">{escape(name)}</text>']
    for i in range(len(TOP)):
        lines.append(f'<path d="M{middle} {MARGIN + FLOOR * i + BOX_HEIGHT} V{MARGIN + FLOOR * (i + 1)}"/>')
    for arrow in arrows:
        path = f"M{x[arrow[0]]} {y[arrow[0]] + half}"
        for high, low in itertools.pairwise(arrow):
            from_y, to_y = y[high] + half, y[low] - half
            bend = (from_y + to_y) // 2
            path += f" C{x[high]} {bend} {x[low]} {bend} {x[low]} {to_y}"
            path += "" if low == arrow[-1] else f" V{y[low] + half}"
        lines.append(f'<path d="{path}"/>')
    for floor in floors:
        for node in floor:
            if isinstance(node, str):
                includes = ", ".join(may_use[node]) or "no other module"
                lines += [f'<g><title>{escape(node)} includes {escape(includes)}</title>',
                          f'<rect x="{x[node] - BOX_WIDTH // 2}" y="{y[node] - half}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>',
                          f'<text x="{x[node]}" y="{y[node] + 5}">{escape(node)}</text></g>']
    return "\n".join([*lines, "</svg>", ""])


def read_layers(root):
    return tomllib.loads((root / "tools" / "layers.toml").read_text())["may_use"]


if __name__ == "__main__":
    tree = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1]).resolve()
    (tree / "docs" / "architecture.svg").write_text(draw(read_layers(tree)))
