"""Model folders as people have them: the demo model's weights with other files around them."""

import json
import os
import shutil

import pytest

import quire
from conftest import MODEL

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
def folder(tmp_path):
    """Copies the demo model into a folder whose small files may be changed; the weights are linked."""
    for file in MODEL.iterdir():
        if file.suffix == ".safetensors":
            (tmp_path / file.name).symlink_to(file)
        elif file.is_file():
            shutil.copy(file, tmp_path)
    return tmp_path


def edit_json(path, **changes):
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, **changes}))


def with_templates(folder, templates):
    for file in ("chat_template.jinja", "chat_template.json"):
        (folder / file).unlink(missing_ok=True)
    edit_json(folder / "tokenizer_config.json", chat_template=templates)
    return quire.Tokenizer.open(folder)


def test_of_named_templates_the_one_for_tools_is_taken_when_there_are_tools(folder):
    tokenizer = with_templates(folder, [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools[0] }}"}])
    assert tokenizer.apply_chat_template(MESSAGES, tokenize=False) == "plain"
    assert tokenizer.apply_chat_template(MESSAGES, tokenize=False, tools=["hammer"]) == "hammer"
    assert tokenizer.apply_chat_template(MESSAGES, tokenize=False, tools=None) == "plain"


def test_a_template_of_its_own_file_goes_before_the_one_in_tokenizer_config(folder):
    with_templates(folder, "from the config")
    (folder / "chat_template.jinja").write_text("from the file")
    assert quire.Tokenizer.open(folder).apply_chat_template(MESSAGES, tokenize=False) == "from the file"


def test_without_a_usable_template_chat_says_why(folder):
    for templates, reason in (([{"name": "rag", "template": "x"}], 'named "rag" and none named "default"'), ("{% if %}", "not usable"), (None, "no chat template")):
        with pytest.raises(NotImplementedError, match=reason):
            with_templates(folder, templates).apply_chat_template(MESSAGES)


@pytest.mark.parametrize(("templates", "kind"), [(5, "a number"), (True, "a bool"), ({"default": "plain"}, "an object")])
def test_a_template_of_another_type_is_refused_with_its_file(folder, templates, kind):
    with pytest.raises(ValueError, match=f"tokenizer_config.json: \"chat_template\" is {kind}; it must be a string, or a list"):
        with_templates(folder, templates)


def test_texts_become_no_chunks_where_the_template_is_not_usable(folder):
    """The model learned a format; plain text is not it."""
    with_templates(folder, "{% if %}")
    with quire.ChunkedLLM(folder, threads=1) as llm:
        with pytest.raises(NotImplementedError, match="not usable: template line 1"):
            llm.register_chunk("Card 3.", "context")
        with pytest.raises(NotImplementedError, match="not usable: template line 1"):
            quire.ContextManager(llm).add("Card 3.")
        assert llm.get_chunk(llm.register_chunk([5, 6], "context")).token_ids == [5, 6]


def test_a_template_for_tools_that_is_not_usable_is_not_passed_over(folder):
    tokenizer = with_templates(folder, [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{% if %}"}])
    assert tokenizer.apply_chat_template(MESSAGES, tokenize=False) == "plain"
    with pytest.raises(NotImplementedError, match="not usable"):
        tokenizer.apply_chat_template(MESSAGES, tokenize=False, tools=["hammer"])


@pytest.mark.parametrize("messages", [None, "hi", {"role": "user"}, [5], ["hi"]])
def test_messages_that_are_no_list_of_objects_are_refused(llm, messages):
    with pytest.raises(ValueError, match="messages"):
        llm.tokenizer.apply_chat_template(messages)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model": {"type": "Magic"}}'])
def test_a_broken_tokenizer_names_its_file(folder, text):
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises((ValueError, OSError, NotImplementedError), match="tokenizer.json"):
        quire.LLM(folder)


def test_ids_that_the_tokenizer_does_not_know_have_no_text(folder):
    """Models pad their vocabulary beyond the tokenizer's."""
    (folder / "tokenizer_config.json").unlink()
    (folder / "special_tokens_map.json").unlink()  # what it names is added, as transformers does
    vocab = [["<unk>", 0.0], ["a", -1.0], ["b", -2.0]]
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "Unigram", "unk_id": 0, "vocab": vocab}}))
    with quire.LLM(folder, threads=1) as llm:
        assert llm.tokenizer.vocab_size == 3
        out = llm.generate([1, 2000], {"temperature": 0, "max_tokens": 3, "logit_bias": {2000: 1e9}, "ignore_eos": True})
        assert (out.token_ids, out.text) == ([2000] * 3, "")
    with quire.ChunkedLLM(folder, threads=1) as llm:
        chunk = llm.get_chunk(llm.register_chunk([1, 2000, 2], "context", anchor=""))
        assert (chunk.token_ids, chunk.content) == ([1, 2000, 2], llm.tokenizer.decode([1, 2]))


def test_eos_ids_come_from_both_configs_and_may_lie_outside_of_the_vocabulary(folder):
    edit_json(folder / "config.json", eos_token_id=32000)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    with quire.LLM(folder, threads=1) as llm:
        for end in (7, 9):
            out = llm.generate([20, 30], {"temperature": 0, "max_tokens": 5, "logit_bias": {end: 1e9}})
            assert (out.token_ids, out.finish_reason) == ([end], "stop")


def test_a_stretched_config_serves_its_stretched_length(folder):
    """max_position_embeddings stays as it was, as the instructions of Qwen have it."""
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    edit_json(folder / "config.json", max_position_embeddings=64, rope_scaling=scaling)
    with quire.LLM(folder, threads=1) as llm:
        assert llm.forward([20 + i % 100 for i in range(256)]).logits.shape[0] == 256
        with pytest.raises(quire.KVOverflowError, match="context 256"):
            llm.forward([20] * 257)


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**20, 12345678901234567890123])
def test_an_integer_beyond_64_bits_is_never_another_one(folder, number):
    tokenizer = with_templates(folder, "{{ x }}{{ messages[0].n }}")
    with pytest.raises(ValueError, match=f"messages: the number {number} is beyond 64 bits"):
        tokenizer.apply_chat_template([{"role": "user", "content": "", "n": number}], tokenize=False)
    with pytest.raises(ValueError, match=f"template variables: the number {number} is beyond"):
        tokenizer.apply_chat_template(MESSAGES, tokenize=False, x=number)
    exact = tokenizer.apply_chat_template([{"role": "user", "content": "", "n": -(2**63)}], tokenize=False, x=2**63 - 1)
    assert exact == f"{2**63 - 1}{-(2**63)}"


def literal_json(folder, name, key, literal):
    """Sets a key of a JSON file to a number as it is spelled."""
    fields = json.loads((folder / name).read_text())
    text = json.dumps({**fields, key: "@"}).replace('"@"', literal)
    (folder / name).write_text(text)
    return json.loads(text)[key]  # the oracle: Python reads RFC 8259, too


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("literal", ["7E0", "7.0", "0.7e1", "70e-1", "[7E0, 9.0]", "0E0", "-0", "-0.0", "0e+0", "0.0E-9"])
def test_an_id_may_be_spelled_as_any_integer_of_json(folder, name, literal):
    if name == "generation_config.json":
        (folder / name).write_text("{}")
    given = literal_json(folder, name, "eos_token_id", literal)
    end = int(given[0] if isinstance(given, list) else given)
    with quire.LLM(folder, threads=1) as llm:
        out = llm.generate([20, 30], {"temperature": 0, "max_tokens": 5, "logit_bias": {end: 1e9}})
        assert (out.token_ids, out.finish_reason) == ([end], "stop")


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "max_position_embeddings", "vocab_size", "eos_token_id",
                                 "rms_norm_eps", "rope_theta"])
@pytest.mark.parametrize("literal", ["1E400", "-1e400", "123456789012345678901234567890", "-9223372036854775809", "99999999999999"])
def test_a_number_that_does_not_fit_is_refused_with_its_key(folder, key, literal):
    literal_json(folder, "config.json", key, literal)
    if key == "rope_theta" and literal == "99999999999999":
        return  # a frequency may be as large
    with pytest.raises(ValueError, match=f'config.json: .*"{key}"'):
        quire.LLM(folder, threads=1)


@pytest.mark.parametrize("literal", ["01", "+1", ".5", "5.", "1e", "0x10", "1_000", "--1", "-"])
def test_what_is_no_number_of_json_is_refused_with_its_file(folder, literal):
    text = json.dumps({**json.loads((folder / "config.json").read_text()), "hidden_size": "@"}).replace('"@"', literal)
    (folder / "config.json").write_text(text)
    with pytest.raises(ValueError, match="config.json: not valid JSON"):
        quire.LLM(folder, threads=1)


@pytest.mark.parametrize("number", [10**400, -(2**63) - 1, float("1e308") * 10])
def test_a_number_of_a_message_that_does_not_fit_is_refused_with_its_key(folder, number):
    tokenizer = with_templates(folder, "{{ x }}{{ messages[0].n }}")
    with pytest.raises(ValueError, match="messages: .*(beyond 64 bits.*key \"n\"|not JSON compliant)"):
        tokenizer.apply_chat_template([{"role": "user", "content": "", "n": [number]}], tokenize=False)


def test_a_pipe_among_the_files_is_refused_and_not_waited_for(folder):
    for name in ("config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja"):
        kept = (folder / name).read_bytes() if (folder / name).exists() else None
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
        with pytest.raises(OSError, match=f"{name}: not a regular file"):
            quire.LLM(folder, threads=1)
        (folder / name).unlink()
        if kept is not None:
            (folder / name).write_bytes(kept)


def test_inspect_names_what_would_keep_the_model_from_loading(folder):
    assert quire.inspect(folder)["unsupported"] == []
    edit_json(folder / "config.json", num_hidden_layers=9)
    (reason,) = quire.inspect(folder)["unsupported"]
    assert "model.layers.8." in reason
