"""Writes goldens.json: what jinja2 makes of shapes/*.jinja with every conversation, and of every snippet.

    python3 -m pip install jinja2==3.1.6 && python3 make_goldens.py
"""

import json
import pathlib

from conversations import CONVERSATIONS
from reference import JINJA2_VERSION, NOW, render
from snippets import VARIABLES, snippets

HERE = pathlib.Path(__file__).parent


def main():
    shapes = {path.stem: path.read_text(encoding="utf-8") for path in sorted((HERE / "shapes").glob("*.jinja"))}
    goldens = {
        "jinja2": JINJA2_VERSION,
        "now": NOW,
        "conversations": CONVERSATIONS,
        # text, or null where jinja2 refuses
        "shapes": {name: {c: render(shape, v)[0] for c, v in CONVERSATIONS.items()} for name, shape in shapes.items()},
        "snippet_variables": VARIABLES,
        "snippets": [[template, render(template, VARIABLES)[0]] for template in snippets()],
    }
    text = json.dumps(goldens, ensure_ascii=False, indent=0)
    (HERE / "goldens.json").write_text(text + "\n", encoding="utf-8")
    rendered = sum(text is not None for of in goldens["shapes"].values() for text in of.values())
    print(f"{len(shapes)} shapes, {rendered} renderings, {len(goldens['snippets'])} snippets, {len(text)} bytes")


if __name__ == "__main__":
    main()
