"""Answers of chats in parts. Each model says a script; its parts are written down by hand."""

import asyncio
import json

import pytest
from support.scripted_model import scripted_model

import quire

QUESTION = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}}]
GREEDY = {"temperature": 0}

SHOWN = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{{ messages[0].content }}"
QWEN = SHOWN + "{#- </think> <tool_call> -#}<start>"
PLAIN = SHOWN + "<start>"

THOUGHT = ["<think>", "\nTwo and", " two.\n", "</think>", "\n\nFo", "ur."]
CALL = ["So", ".\n", "<tool_call>", '{"name": "weather", ', '"arguments": {"city": "Ulm", "days": 3}}', "</tool_call>"]


@pytest.fixture
def says(tmp_path):
    """Returns the function that opens a model which says a script."""
    opened = []

    def make(template, script, specials=(), start="<start>"):
        folder = scripted_model(tmp_path / f"model{len(opened)}", template, script, specials, start)
        opened.append(quire.LLM(folder, kv_budget="16M", threads=1))
        return opened[-1]

    yield make
    for llm in opened:
        llm.close()


def joined(deltas):
    """Joins the parts of deltas."""
    return {
        "thinking": "".join(each.thinking for each in deltas),
        "content": "".join(each.content for each in deltas),
        "tool_calls": [call for each in deltas for call in each.tool_calls],
    }


def parts_of(output):
    return {name: output[name] for name in ("thinking", "content", "tool_calls")}


def test_thinking_is_apart_from_the_content_and_the_text_is_whole(says):
    output = says(QWEN, THOUGHT).chat(QUESTION, **GREEDY)
    assert output.text == "".join(THOUGHT)
    assert (output.thinking, output.content, output.tool_calls) == ("Two and two.", "Four.", [])


def test_a_template_that_opens_thinking_begins_inside_of_it(says):
    output = says(SHOWN + "{#- </think> -#}<think>", THOUGHT[1:], start="<think>").chat(QUESTION, **GREEDY)
    assert (output.thinking, output.content) == ("Two and two.", "Four.")


def test_streams_join_to_the_parts_of_the_whole(says):
    llm = says(QWEN, THOUGHT)
    with llm.stream_chat(QUESTION, **GREEDY) as stream:
        deltas = list(stream)
    assert joined(deltas) == parts_of(stream.output) == parts_of(llm.chat(QUESTION, **GREEDY))
    assert "".join(each.text for each in deltas) == stream.text == "".join(THOUGHT)


def test_calls_of_tools_have_a_name_and_arguments(says):
    llm = says(QWEN, CALL)
    output = llm.chat(QUESTION, tools=TOOLS, **GREEDY)
    assert output.content == "So."
    (call,) = output.tool_calls
    assert (call.name, call.arguments) == ("weather", {"city": "Ulm", "days": 3})
    assert call.id.startswith("call_")
    with llm.stream_chat(QUESTION, tools=TOOLS, **GREEDY) as stream:
        assert joined(list(stream)) == parts_of(output)
    json.dumps(output)


def test_without_tools_calls_stay_text(says):
    output = says(QWEN, CALL).chat(QUESTION, **GREEDY)
    assert output.content == output.text == "".join(CALL)
    assert output.tool_calls == []


def test_marks_that_are_special_tokens_count_although_the_text_lacks_them(says):
    marks = ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>"]
    script = [marks[0], "thought\nHm.", "\n", *marks[1:3], "call:weather{", "days:3}", marks[3], "Done."]
    output = says(SHOWN + "{#- <|channel> <|tool_call> -#}<start>", script, marks).chat(QUESTION, tools=TOOLS, **GREEDY)
    assert output.text == "thought\nHm.\ncall:weather{days:3}Done."
    assert (output.thinking, output.content) == ("Hm.", "Done.")
    assert [(call.name, call.arguments) for call in output.tool_calls] == [("weather", {"days": 3})]


def test_a_channel_of_gpt_oss_is_a_part(says):
    marks = ["<|channel|>", "<|message|>", "<|end|>", "<|start|>"]
    llm = says(SHOWN + "{#- <|channel|> <|message|> -#}<|start|>assistant", [marks[0], "analysis", marks[1], "Hm.", marks[2]],
               marks, start="assistant")
    output = llm.chat(QUESTION, **GREEDY)
    assert output.text == "analysisHm."
    assert (output.thinking, output.content) == ("Hm.", "")


def test_a_model_without_marks_answers_as_before(says):
    output = says(PLAIN, THOUGHT).chat(QUESTION, **GREEDY)
    assert output.content == output.text == "".join(THOUGHT)
    assert (output.thinking, output.tool_calls) == ("", [])


def test_a_stop_string_ends_the_content(says):
    output = says(QWEN, THOUGHT).chat(QUESTION, stop="ur", **GREEDY)
    assert (output.thinking, output.content) == ("Two and two.", "Fo")


def test_each_choice_has_its_parts(says):
    output = says(QWEN, THOUGHT).chat(QUESTION, n=3, temperature=0.01)
    assert [each.content for each in output.outputs] == ["Four."] * 3
    assert [each.thinking for each in output.outputs] == ["Two and two."] * 3


def test_on_an_event_loop_the_parts_are_the_same(says):
    llm = says(QWEN, CALL)
    whole = llm.chat(QUESTION, tools=TOOLS, **GREEDY)

    async def ask():
        output = await llm.chat_async(QUESTION, tools=TOOLS, **GREEDY)
        stream = llm.stream_chat_async(QUESTION, tools=TOOLS, **GREEDY)
        return output, [delta async for delta in stream], stream.output

    output, deltas, last = asyncio.run(ask())
    assert parts_of(output) == parts_of(last) == joined(deltas) == parts_of(whole)


def test_outputs_of_plain_prompts_name_the_call_that_has_parts(says):
    output = says(QWEN, THOUGHT).generate("<start>", **GREEDY)
    assert output.text == "".join(THOUGHT)
    with pytest.raises(AttributeError, match=r"llm\.chat gives it"):
        _ = output.thinking
