"""Where the time of a check went: build/logs/times.json, and a table of it.

Stages add their seconds as they end. Compilations come from ninja's logs, tests from the reports of CTest and pytest; each
counts only where it ran after the check began.
"""

import json
import pathlib
import time
import xml.etree.ElementTree as xml

SHOWN = 20


def compilations(build, since):
    """Yields (seconds, what) for each output that ninja made in the folder `build` after `since`, in epoch seconds."""
    log = build / ".ninja_log"
    if not log.exists():
        return
    latest = {}
    for line in log.read_text().splitlines():
        fields = line.split("\t")
        if len(fields) == 5:
            latest[fields[3]] = fields
    for output, (start, end, _, _, _) in latest.items():
        path = build / output
        if output.endswith((".o", ".gch", ".pch")) and path.exists() and path.stat().st_mtime >= since:
            yield (int(end) - int(start)) / 1000, f"{build.name}: {short(output)}"


def short(output):
    """Returns the name of an object without the folders that CMake puts before it."""
    return output.replace("CMakeFiles/", "").replace(".dir/", " ").replace("_cxx.cxx.o", "").removesuffix(".o")


def tests(report, name, since):
    """Yields (seconds, what) for each test of a JUnit report that was written after `since`."""
    if report.exists() and report.stat().st_mtime >= since:
        for case in xml.parse(report).getroot().iter("testcase"):
            yield float(case.get("time") or 0), f"{name}: {case.get('name')}"


class Times:
    """The seconds of one check. The file is written anew whenever a phase ends, so that a check that is cut off leaves one."""

    def __init__(self, root):
        self.root, self.start, self.phases = root, time.time(), []

    def add(self, stage, phase, seconds):
        self.phases.append({"stage": stage, "phase": phase, "seconds": round(seconds, 1)})
        self.path().parent.mkdir(parents=True, exist_ok=True)
        self.path().write_text(json.dumps(self.report(), indent=1) + "\n")

    def path(self):
        return self.root / "build" / "logs" / "times.json"

    def report(self):
        builds = sorted(path.parent for path in (self.root / "build").glob("*/.ninja_log"))
        compiled = sorted((c for build in builds for c in compilations(build, self.start)), reverse=True)
        reports = [(path, path.parent.name) for path in sorted((self.root / "build").glob("*/ctest*.xml"))]
        reports += [(path, "python") for path in sorted((self.root / "build").glob("pytest*.xml"))]
        ran = sorted((t for path, name in reports for t in tests(path, name, self.start)), reverse=True)
        return {
            "seconds": round(time.time() - self.start, 1),
            "stages": self.phases,
            "compilations": {"count": len(compiled), "seconds": round(sum(s for s, _ in compiled), 1), "slowest": named(compiled)},
            "tests": {"count": len(ran), "seconds": round(sum(s for s, _ in ran), 1), "slowest": named(ran)},
        }

    def table(self):
        """Returns the report as text: the slowest compilations and tests, then the stages."""
        report, lines = self.report(), []
        for kind in ("compilations", "tests"):
            part = report[kind]
            if part["count"]:
                lines.append(f"{part['count']} {kind}, {part['seconds']:.0f} s one after the other; the slowest:")
                lines += [f"{each['seconds']:8.1f}  {each['name']}" for each in part["slowest"]]
        lines.append(f"{'stage':10}{'phase':8}{'seconds':>9}")
        lines += [f"{phase['stage']:10}{phase['phase']:8}{phase['seconds']:9.1f}" for phase in report["stages"]]
        lines.append(f"{report['seconds']:27.1f} in all")
        lines.append(f"all of it: {pathlib.Path('build/logs/times.json')}")
        return "\n".join(lines)


def named(rows):
    return [{"seconds": round(seconds, 1), "name": name} for seconds, name in rows[:SHOWN]]
