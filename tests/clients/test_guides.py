"""The code of README, docs/serving.md and docs/serve.md runs against a server as it is written, but for the port."""
import re
import shutil
import subprocess

import pytest
from serve import MODEL, ROOT

GUIDE = ROOT / "docs" / "serving.md"
RUNNING = ROOT / "docs" / "serve.md"
README = ROOT / "README.md"
PORT = "http://127.0.0.1:8000"


def blocks(path, language):
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.S)


def run_command(command, server):
    if not shutil.which("curl"):
        pytest.skip("no curl")
    done = subprocess.run(["bash", "-c", command.replace(PORT, server.url)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_client_of_the_readme_is_answered(server, capsys):
    (block,) = [each for each in blocks(README, "python") if "import openai" in each]
    exec(compile(block.replace(PORT, server.url), "README.md", "exec"), {})
    assert capsys.readouterr().out.strip().endswith("tokens reused")


def test_the_command_of_the_readme_is_answered(server):
    (command,) = re.findall(r"^curl .*$", README.read_text(), re.M)
    assert '"object":"text_completion"' in run_command(command, server)


def test_the_blocks_of_the_guide_run_in_order(server):
    text, names = GUIDE.read_text(), {}
    found = list(re.finditer(r"```python\n(.*?)```", text, re.S))
    assert len(found) == 5
    for block in found:
        code = block[1].replace(PORT, server.url)
        exec(compile("\n" * text.count("\n", 0, block.start(1)) + code, GUIDE.name, "exec"), names)


def test_the_commands_of_the_guide_are_answered(server):
    (chat,), (metrics,) = blocks(GUIDE, "sh"), blocks(RUNNING, "sh")
    assert "Foxley." in run_command(chat, server)
    assert "vllm:prompt_tokens_total" in run_command(metrics, server)


def test_the_demo_shows_documents_in_two_orders(tmp_path):
    from serve import BINARY

    pile = tmp_path / "context.jsonl"
    generator = ROOT / "models" / "cardfile" / "cardfile.py"
    subprocess.run(["python3", generator, "write", "--seed", "24", "--contexts", "1", "--chunks", "52", "--questions", "8",
                    "--out", pile], check=True, capture_output=True)
    done = subprocess.run(["python3", ROOT / "tools" / "demo_serve.py", BINARY, MODEL, pile], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [row for row in done.stdout.splitlines() if " 1 2 3 " in row or " 3 1 2 " in row]
    assert len(rows) == 4 and "wrong" not in done.stdout and "docs/serving.md" in done.stdout
