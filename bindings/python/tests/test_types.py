"""The types that the package declares: mypy finds the programs of the guides right, and wrong ones wrong."""

import ast
import inspect
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import ROOT

import quire

pytestmark = pytest.mark.cpu_only  # of the wheel: a GPU machine may have the extension without the rest
GUIDES = ("README.md", "docs/chunks.md", "docs/direct-inference.md", "docs/cache-hints.md", "docs/checkpoints.md",
          "docs/python.md", "docs/choosing.md")


@pytest.fixture(scope="module")
def mypy(tmp_path_factory):
    """Returns a function that checks programs against the installed package with mypy, which reads other
    files only once."""
    folder = tmp_path_factory.mktemp("mypy")

    def check(*programs):
        files = [folder / f"program{number}.py" for number in range(len(programs))]
        for file, program in zip(files, programs, strict=True):
            file.write_text(program)
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--no-error-summary", *map(str, files)], cwd=folder, capture_output=True, text=True
        )
        return done.stdout + done.stderr

    return check


def test_the_programs_of_the_guides_are_well_typed(mypy):
    programs = []
    for guide in GUIDES:
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / guide).read_text(), re.S)
        blocks = [block for block in blocks if "import openai" not in block]  # tests/clients runs it, where openai is
        programs += blocks if guide == "README.md" else ["\n".join(blocks)]
    assert mypy(*programs) == ""


def test_what_calls_give_depends_on_what_they_get(mypy):
    program = """
from typing import assert_type
import quire

with quire.ChunkedLLM("m") as llm:
    assert_type(llm, quire.ChunkedLLM)
    assert_type(llm.generate("a", quire.SamplingParams(max_tokens=3)), quire.GenerationOutput)
    assert_type(llm.generate([5, 6]), quire.GenerationOutput)
    assert_type(llm.generate(["a", "b"]), list[quire.GenerationOutput])
    assert_type(llm.generate([[5, 6], [7]], [{}, None]), list[quire.GenerationOutput])
    assert_type(llm.generate(system_prompt="s", context=["c"], query="q", mode="exact"), quire.GenerationOutput)
    assert_type(llm.tokenizer.apply_chat_template([]), list[int])
    assert_type(llm.tokenizer.apply_chat_template([], tokenize=False), str)
    assert_type(llm.generate(system_prompt="s", query="q", mode="blend", selector="first_k", max_tokens=3), quire.GenerationOutput)
    assert_type(llm.sequence([5]).checkpoint(), quire.Mark)
    assert_type(llm.register_chunk("a", "context"), str)
    assert_type(llm.register_chunk("a", "context", details=True), quire.RegisteredChunk)
    assert_type(llm.register_chunks([("a", "context")], details=True), list[quire.RegisteredChunk])

async def ask(llm: quire.ChunkedLLM) -> None:
    assert_type(await llm.generate_async("a", max_tokens=3), quire.GenerationOutput)
    assert_type(await llm.generate_async(["a"]), list[quire.GenerationOutput])
    assert_type(await llm.chat_async([{"role": "user", "content": "a"}], temperature=0), quire.GenerationOutput)
    assert_type(await llm.generate_from_chunks_async("a", [], "b", mode="exact", seed=1), quire.GenerationOutput)
    async for delta in llm.stream_chat_async([]):
        assert_type(delta, quire.Delta)

with quire.LLM("m") as plain:
    assert_type(plain.generate(["a"]), list[quire.GenerationOutput])
"""
    assert mypy(program) == ""


@pytest.mark.parametrize(
    "wrong",
    [
        "quire.SamplingParams(temprature=0)",
        "quire.SamplingParams(top_k='x')",
        "quire.LLM('m').generate('a').txt",
        "quire.LLM('m').generat('a')",
        "quire.LLM('m', thredas=2)",
        "quire.LLM('m', dtype='float8')",
        "quire.LLM('m', quantize='q5')",
        "quire.ChunkedLLM('m', thredas=2)",
        "quire.ChunkedLLM('m', quantize='q5')",
        "quire.LLM('m').chat([], max_token=2)",
        "quire.LLM('m').generate('a', temprature=2)",
        "quire.ChunkedLLM('m').compose('a', [], 'b', mode='anchord')",
        "quire.ChunkedLLM('m').generate_from_chunks('a', [], 'b', mode='blend', selector='first')",
        "quire.ChunkedLLM('m').generate(system_prompt='a', query='b', mode='anchord')",
    ],
)
def test_a_misspelt_name_and_a_wrong_kind_of_value_are_found(mypy, wrong):
    assert "program0.py:2: error: " in mypy(f"import quire\n{wrong}\n")


def test_the_keywords_of_calls_that_sample_are_the_fields_of_sampling_params():
    assert list(quire.sampling.Sampling.__annotations__) == list(inspect.signature(quire.SamplingParams).parameters)


def test_the_stub_of_the_extension_says_what_is_in_it():
    stub = ast.parse((pathlib.Path(quire.__file__).parent / "_quire.pyi").read_text())
    classes = {each.name: each for each in stub.body if isinstance(each, ast.ClassDef)}
    assert classes.keys() == {name for name in quire.__all__ if getattr(quire, name) is getattr(quire._quire, name, None)} - {
        "__version__"
    }
    for name, each in classes.items():
        assert ast.get_docstring(each).replace("\n", " ") == getattr(quire, name).__doc__
    init, *methods = (each for each in classes["SamplingParams"].body if isinstance(each, ast.FunctionDef))
    fields = [each for each in methods if any(getattr(one, "id", "") == "property" for one in each.decorator_list)]
    defaults = [ast.literal_eval(default) for default in init.args.defaults]
    said = dict(zip((each.arg for each in init.args.args[1:]), defaults, strict=True))
    assert said == {name: each.default for name, each in inspect.signature(quire.SamplingParams).parameters.items()}
    assert [field.name for field in fields] == list(said)
