"""Renders every *.jinja of a folder with jinja2 and with Quire and compares: text, refusals, and provenance.

    compare_fetched.py <render_template program> <folder of templates>

The templates are other people's: they are fetched at set-up and never part of this tree. Exits with 77 (skipped) where the
folder or jinja2 is missing, unless QUIRE_REQUIRE_FETCHED=1.
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

from conversations import CONVERSATIONS


# Where the letters of message i are moved to, so that every one tells where it came from.
ALPHABETS = 0xAC00  # Hangul syllables, which no template or conversation uses
ALPHABET_SIZE = 0x80
ARGUMENT_ALPHABET = 80
# Members whose strings may be anything; others (role, type, name) steer the templates.
FREE_TEXT = {"content", "text", "reasoning_content", "reasoning", "thinking", "arguments", "description", "title"}


def tag(value, alphabet, free=False):
    """Moves the ASCII letters of the free text of `value` to an alphabet of its own."""
    if isinstance(value, str) and free:
        base = ALPHABETS + alphabet * ALPHABET_SIZE
        return "".join(chr(base + ord(c)) if c.isascii() and c.isalpha() else c for c in value)
    if isinstance(value, dict):
        return {key: tag(item, alphabet, free or key in FREE_TEXT) for key, item in value.items()}
    if isinstance(value, list):
        return [tag(item, alphabet, free) for item in value]
    return value


def tagged(variables):
    out = dict(variables, messages=[tag(message, i) for i, message in enumerate(variables["messages"])])
    for name in ("tools", "documents"):
        if out.get(name):
            out[name] = tag(out[name], ARGUMENT_ALPHABET)
    return out


def wrong_provenance(spans):
    """Returns a letter with another source than its alphabet says, or None."""
    for text, source in spans:
        for letter in text:
            alphabet = (ord(letter) - ALPHABETS) // ALPHABET_SIZE
            if 0 <= alphabet <= ARGUMENT_ALPHABET:
                expected = -2 if alphabet == ARGUMENT_ALPHABET else alphabet
                if source != expected:
                    return f"in {text[:60]!r}: {letter!r} has source {source}, not {expected}"
    return None


def compare(expected, reason, got, is_tagged):
    """Returns the difference as a text, or None."""
    if "spans" in got:
        text = "".join(span[0] for span in got["spans"])
        if expected is None:
            return f"jinja2 refuses ({reason}), Quire renders {text[:80]!r}"
        if text != expected:
            at = next((i for i, (a, b) in enumerate(zip(text, expected)) if a != b), min(len(text), len(expected)))
            return f"at {at}: jinja2 {expected[max(0, at - 40):at + 40]!r}, Quire {text[max(0, at - 40):at + 40]!r}"
        return wrong_provenance(got["spans"]) if is_tagged else None
    if expected is not None:
        return f"jinja2 renders, Quire refuses: {got['error']}"
    if reason.startswith("TemplateError: ") and reason.removeprefix("TemplateError: ") not in got["error"]:
        return f"jinja2 says {reason}, Quire {got['error']}"
    return None


def missing(folder):
    """Names the file or package that the comparison lacks, or returns None."""
    if not folder.is_dir():
        return f"{folder} (tools/fetch_vocabs.py)"
    return None if importlib.util.find_spec("jinja2") else "jinja2 (requirements/test.txt)"


def main():
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    if what := missing(folder):
        print(f"not compared, for want of {what}")
        return 1 if os.environ.get("QUIRE_REQUIRE_FETCHED") == "1" else 77
    from reference import NOW, render  # noqa: PLC0415: imports jinja2

    cases = []
    for path in sorted(folder.glob("*.jinja")):
        template = path.read_text(encoding="utf-8")
        for name, variables in CONVERSATIONS.items():
            cases.append((path.name, name, template, variables))
            cases.append((path.name, name + ", tagged", template, tagged(variables)))
    if not cases:
        raise SystemExit(f"no *.jinja files in {folder}")
    lines = "".join(json.dumps({"template": t, "variables": v, "now": NOW}) + "\n" for _, _, t, v in cases)
    done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True)
    answers = done.stdout.splitlines()
    if len(answers) != len(cases):
        raise SystemExit(f"{len(cases)} requests, {len(answers)} answers")
    rendered = failures = 0
    for (file, name, template, variables), answer in zip(cases, answers):
        expected, reason = render(template, variables)
        rendered += expected is not None
        difference = compare(expected, reason, json.loads(answer), name.endswith(", tagged"))
        if difference:
            failures += 1
            print(f"{file} [{name}]: {difference}")
    files = len({case[0] for case in cases})
    print(f"{files} templates, {len(cases)} renderings, {rendered} of them not refused, {failures} differ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
