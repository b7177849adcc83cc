"""The example programs run on the demo model and end well; they check their own answers."""
import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("name", ["rag", "multi_turn", "multi_agent", "agent_forks", "session_restart"])
def test_example_gives_right_answers_and_shows_what_it_reused(name, tmp_path):
    done = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert " tokens reused" in done.stdout and "prefills avoided" in done.stdout or "tokens computed for" in done.stdout
