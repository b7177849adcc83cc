"""The Python blocks of the README run, and show what it says: answers and reused tokens."""
import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


def run(block, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    exec(compile(block, "README.md", "exec"), {})
    return capsys.readouterr().out


def test_questions_over_shared_documents_reuse_them(monkeypatch, capsys):
    first, second, rest = run(BLOCKS[0], monkeypatch, capsys).split("\n", 2)
    assert "apples." in first and " 0 of " in first
    assert "Foxley." in second and " 0 of " not in second
    assert rest.strip()


def test_questions_work_with_a_template_that_has_no_place_for_documents(monkeypatch, capsys, tmp_path):
    model = ROOT / "models" / "cardfile" / "model"
    for file in model.iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((model / "tokenizer_config.json").read_text())
    documents = config["chat_template"][config["chat_template"].index("{%- if documents") :]
    documents = documents[: documents.index("{%- for message")]
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({**config, "chat_template": config["chat_template"].replace(documents, "")})
    )
    block = BLOCKS[0].replace("models/cardfile/model", str(tmp_path))
    first, second, _ = run(block, monkeypatch, capsys).split("\n", 2)
    assert "apples." in first and "Foxley." in second


def test_chunks_are_reused_in_both_orders(monkeypatch, capsys):
    for line in run(BLOCKS[2], monkeypatch, capsys).splitlines():
        assert "Foxley." in line and " 0 of " not in line and line.endswith("approximate")


def test_no_block_is_forgotten():
    assert len(BLOCKS) == 3 and "import openai" in BLOCKS[1]  # tests/clients runs it
