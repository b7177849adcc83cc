"""chat: nothing of a request is lost. Oracles: the ids of the template, and the documented messages."""

import json
import os
import warnings

import pytest
from conftest import MODEL

import quire

QUESTION = [{"role": "user", "content": "What does Ada trade in?"}]
CARDS = [{"text": "Card 7. Ada trades in apples."}, {"text": "Card 9. Lars carries a lantern."}]
TOOL = {"type": "function", "function": {"name": "find", "description": "Finds a card.", "parameters": {"type": "object"}}}
GREEDY = {"temperature": 0}

CHATML = (
    "{% for message in messages %}{{ '<q> ' + message['role'] + ' ' + message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<a>' }}{% endif %}"
)
THINKING = CHATML + "{% if enable_thinking is not defined or enable_thinking %}{{ ' think' }}{% endif %}"
TOOLS = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}" + THINKING
CALLS = "{% for tool in tools or [] if tool.type == 'function' %}{{ tool.function.name }}{% endfor %}" + CHATML
TITLES = "{% for document in documents or [] %}{{ document['title'] }}{% endfor %}" + CHATML
FIRST_ONLY = "{% if documents %}{{ documents[0]['text'] }}{% endif %}" + CHATML


def folder_with(template, folder):
    """Makes the demo model with another chat template."""
    folder.mkdir()
    for file in MODEL.iterdir():
        if file.name != "tokenizer_config.json":
            os.symlink(file, folder / file.name)
    config = json.loads((MODEL / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    return folder


@pytest.fixture
def tokenizer_with(tmp_path):
    return lambda template: quire.Tokenizer.open(folder_with(template, tmp_path / "model"))


@pytest.fixture
def llm_with(tmp_path):
    opened = []

    def open_model(template):
        opened.append(quire.LLM(folder_with(template, tmp_path / f"model{len(opened)}"), threads=1, kv_budget="16MiB"))
        return opened[-1]

    yield open_model
    for llm in opened:
        llm.close()


def test_sampling_parameters_are_taken_by_keyword(llm):
    wanted = llm.chat(QUESTION, {"temperature": 0, "max_tokens": 2, "ignore_eos": True}, documents=CARDS)
    assert len(wanted.token_ids) == 2
    for out in (
        llm.chat(QUESTION, temperature=0, max_tokens=2, ignore_eos=True, documents=CARDS),
        llm.chat(QUESTION, {"temperature": 2.0, "ignore_eos": True}, temperature=0, max_tokens=2, documents=CARDS),
        llm.chat(QUESTION, quire.SamplingParams(ignore_eos=True, max_tokens=9), temperature=0, max_tokens=2, documents=CARDS),
        [*llm.stream_chat(QUESTION, temperature=0, max_tokens=2, ignore_eos=True, documents=CARDS)] and wanted,
    ):
        assert out.token_ids == wanted.token_ids


def test_every_call_that_samples_takes_them_so():
    short = {"max_tokens": 2, "ignore_eos": True, "temperature": 0}
    with quire.ChunkedLLM(MODEL, threads=1, kv_budget="32MiB") as llm:
        chunks = (
            llm.register_chunk("Answer.", "system_prompt"),
            [llm.register_chunk("Card 4.", "context")],
            llm.register_chunk("Who?", "query"),
        )
        blocks, count = llm.chunk_blocks(chunks[0])
        outputs = [
            llm.generate("Ada", **short),
            *llm.generate(["Ada", "Lars"], [{}, None], **short),
            llm.generate(system_prompt="Answer.", context=["Card 4."], query="Who?", mode="exact", **short),
            llm.generate_from_chunks(*chunks, mode="exact", **short),
            *llm.batch_generate_from_chunks([llm.compose(*chunks)], **short),
            llm.infer_from_blocks(blocks, count, [5], **short),
            llm.sequence([5, 6]).generate(**short),
            quire.ContextManager(llm).infer("Who?", **short),
        ]
        assert [len(out.token_ids) for out in outputs] == [2] * len(outputs)
        streams = [
            llm.stream("Ada", **short),
            llm.stream_from_chunks(*chunks, **short),
            llm.sequence([5, 6]).stream(**short),
        ]
        assert [sum(len(delta.token_ids) for delta in stream) for stream in streams] == [2] * len(streams)
        assert len(list(llm.infer_from_blocks_stream(blocks, count, [5], **short))) == 2


@pytest.mark.parametrize(
    ("keywords", "word"),
    [
        ({"max_token": 5}, "did you mean max_tokens?"),
        ({"max_new_tokens": 5}, "Quire's word is max_tokens"),
        ({"temprature": 0}, "did you mean temperature?"),
        ({"temp": 0}, "Quire's word is temperature"),
        ({"do_sample": False}, "temperature: 0 is greedy"),
        ({"stream": True}, r"llm.stream\(prompt\) or llm.stream_chat\(messages\)"),
        ({"stream": False}, "llm.stream_chat"),
        ({"document": CARDS}, "did you mean documents?"),
        ({"tool": [TOOL]}, "did you mean tools?"),
        ({"functions": [TOOL]}, "Quire's word is tools"),
        ({"enable_thinking": False}, "takes no 'enable_thinking'"),
        ({"response_format": {}}, "does not have it yet"),
        ({"use_tqdm": False}, "progress="),
        ({"tokenize": False}, "takes no 'tokenize'"),
        ({"messages_": []}, "takes no 'messages_'"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
    ],
)
def test_an_unknown_keyword_is_refused_with_the_nearest_right_word(llm, keywords, word):
    for call in (llm.chat, llm.stream_chat):
        with pytest.raises((TypeError, ValueError), match=word):
            call(QUESTION, GREEDY, **keywords)


def test_generate_and_stream_refuse_likewise(llm):
    for call in (llm.generate, llm.stream):
        with pytest.raises(TypeError, match=r"takes no 'max_new_tokens'; Quire's word is max_tokens"):
            call("Ada", max_new_tokens=3)
    with pytest.raises(ValueError, match="unknown sampling parameter 'max_new_tokens'; Quire's word is max_tokens"):
        llm.generate("Ada", {"max_new_tokens": 3})
    with pytest.raises(ValueError, match=r"unknown sampling parameter 'tempratur'; did you mean temperature\?"):
        quire.SamplingParams(tempratur=1)


def test_documents_come_into_the_prompt_as_the_template_writes_them(llm):
    out = llm.chat(QUESTION, GREEDY, documents=CARDS)
    text = llm.tokenizer.decode(out.prompt_token_ids, skip_special_tokens=False)
    assert all(card["text"] in text for card in CARDS) and out.text.strip() == "apples."
    assert llm.chat(QUESTION, GREEDY, documents=[card["text"] for card in CARDS]).prompt_token_ids == out.prompt_token_ids
    bare = llm.chat(QUESTION, GREEDY).prompt_token_ids
    for none in (None, [], ()):
        assert llm.chat(QUESTION, GREEDY, documents=none, tools=none).prompt_token_ids == bare


@pytest.mark.parametrize(
    ("documents", "error", "named"),
    [
        ([{"content": "Card 7."}], ValueError, r"documents\[0\] has no \"text\".*'content'"),
        ([*CARDS, {"title": "x"}], ValueError, r"documents\[2\] has no \"text\""),
        ([{"text": None}], ValueError, r"documents\[0\] has no \"text\""),
        ([{"text": 5}], ValueError, r"documents\[0\] has no \"text\""),
        ([5], ValueError, r"documents\[0\] must be a dict"),
        ("Card 7.", ValueError, "documents must be a list"),
        (CARDS[0], ValueError, "documents must be a list"),
    ],
)
def test_a_document_without_text_is_refused_by_its_index(llm, documents, error, named):
    for call in (llm.chat, llm.stream_chat, llm.tokenizer.apply_chat_template):
        with pytest.raises(error, match=named):
            call(QUESTION, documents=documents)


@pytest.mark.parametrize(
    ("template", "given", "named"),
    [
        (CHATML, {"documents": CARDS}, "shows no documents; put their text into a message, or register them as chunks"),
        (CHATML, {"tools": [TOOL]}, "shows no tools; describe them in a system message"),
        (TITLES, {"documents": CARDS}, r"does not show documents\[0\] in this conversation"),
        (FIRST_ONLY, {"documents": CARDS}, r"does not show documents\[1\] in this conversation"),
        (CALLS, {"tools": [TOOL, {"name": "bare"}]}, r"does not show tools\[1\]"),
        (CHATML, {"enable_thinking": False}, "never reads 'enable_thinking'"),
        (THINKING, {"enable_thinkin": False}, r"never reads 'enable_thinkin'; did you mean enable_thinking\?"),
        (THINKING, {"message": 1}, "never reads 'message'"),
        (THINKING, {"loop": 1}, "never reads 'loop'"),
    ],
)
def test_what_the_template_would_not_show_is_refused(tokenizer_with, template, given, named):
    tokenizer = tokenizer_with(template)
    for tokenize in (True, False):
        with pytest.raises(ValueError, match=named):
            tokenizer.apply_chat_template(QUESTION, tokenize=tokenize, **given)


def test_chat_says_so_too_and_takes_template_variables(llm_with):
    llm = llm_with(TOOLS)
    with pytest.raises(ValueError, match="shows no documents"):
        llm.chat(QUESTION, documents=CARDS)
    with pytest.raises(ValueError, match=r"never reads 'thinking'; did you mean enable_thinking\?"):
        llm.chat(QUESTION, template_args={"thinking": True})
    with pytest.raises(TypeError, match=r"takes no 'enable_thinkin'; did you mean enable_thinking\?"):
        llm.chat(QUESTION, enable_thinkin=True)
    with pytest.raises(ValueError, match="'documents' in template_args"):
        llm.chat(QUESTION, template_args={"documents": CARDS})
    with pytest.raises(TypeError, match="template_args must be a dict"):
        llm.chat(QUESTION, template_args=5)
    with pytest.raises(ValueError, match=r'tools\[0\] has no function with a "name"'):
        llm.chat(QUESTION, tools=[{"type": "function"}])
    with pytest.raises(ValueError, match=r"tools\[0\] must be a dict"):
        llm.chat(QUESTION, tools=[print])

    def text(**given):
        out = llm.chat(QUESTION, max_tokens=1, **given)
        return llm.tokenizer.decode(out.prompt_token_ids)

    assert text().endswith("think") and '"find"' in text(tools=[TOOL])
    for given in ({"template_args": {"enable_thinking": False}}, {"enable_thinking": False}):
        assert not text(**given).endswith("think")
    assert llm.tokenizer.template_variables == ["add_generation_prompt", "enable_thinking", "messages", "tools"]


def test_parts_of_content_are_joined(llm):
    parts = [{"type": "text", "text": "What does Ada "}, {"type": "text", "text": "trade in?"}]
    wanted = llm.tokenizer.apply_chat_template(QUESTION)
    assert llm.tokenizer.apply_chat_template([{"role": "user", "content": parts}]) == wanted
    assert llm.chat([{"role": "user", "content": tuple(parts)}], GREEDY).prompt_token_ids == wanted
    assert llm.chat(tuple(QUESTION), GREEDY).prompt_token_ids == wanted


@pytest.mark.parametrize(
    ("messages", "error", "named"),
    [
        ("hi", ValueError, r'messages must be a list, not \'hi\'; give \[\{"role": "user", "content": \'hi\'\}\]'),
        (QUESTION[0], ValueError, "messages must be a list"),
        (5, ValueError, "messages must be a list"),
        (None, ValueError, "messages must be a list"),
        ([], ValueError, "messages is empty"),
        (["hi"], ValueError, r"messages\[0\] must be a dict"),
        ([{"role": "user"}], ValueError, r"messages\[0\] has no \"content\".*'role'"),
        ([*QUESTION, {"role": "assistant", "content": None}], ValueError, r'messages\[1\] has no "content"'),
        ([{"content": "hi"}], ValueError, r"messages\[0\] has no \"role\".*'content'"),
        ([{"role": "user", "contents": "hi"}], ValueError, r"messages\[0\] has no \"content\".*'contents'"),
        ([{"role": "user", "content": 5}], ValueError, r'messages\[0\] holds 5 as "content"'),
        ([{"role": "user", "content": [{"type": "image_url"}]}], ValueError, r"messages\[0\]\[\"content\"\]\[0\] is of type 'image_url'"),
        ([{"role": "user", "content": ["hi"]}], ValueError, r"messages\[0\]\[\"content\"\]\[0\] is 'hi'"),
        ([{"role": "user", "content": [{"type": "text"}]}], ValueError, r'\[0\] has no "text"'),
    ],
)
def test_a_message_that_is_none_is_refused_by_its_index(llm, messages, error, named):
    for call in (llm.chat, llm.stream_chat, llm.tokenizer.apply_chat_template):
        with pytest.raises(error, match=named):
            call(messages)


LITERAL = (
    "{% for m in messages %}{% if m.role == 'user' %}<q>{% elif m.role == 'system' %}<sys>{% else %}<a>{% endif %}"
    "{{ m.content }}{% endfor %}"
)
READS_KEYS = "{% for m in messages %}{{ m.role }}{{ m.content }}{{ m.get('weather', '') }}{% if m['mood'] %}!{% endif %}{% endfor %}"
WRITES_ALL = "{{ messages | tojson }}"
KNOWS_CRITICS = "{% for m in messages %}{{ 'Critic: ' if m.role == 'critic' else '' }}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "message", "named"),
    [
        (CHATML, {"role": "usr"}, r"messages\[1\] has the role 'usr'.*did you mean 'user'\?"),
        (CHATML, {"role": "User"}, "did you mean 'user'"),
        (CHATML, {"role": "human"}, "did you mean 'user'"),
        (CHATML, {"role": "asistant"}, "did you mean 'assistant'"),
        (CHATML, {"role": "bot"}, "did you mean 'assistant'"),
        (CHATML, {"role": "developer"}, "did you mean 'system'"),
        (CHATML, {"role": "function"}, "did you mean 'tool'"),
        (KNOWS_CRITICS, {"role": "crtic"}, "role 'crtic', which the chat template does not know"),
        (LITERAL, {"role": "critic"}, "role 'critic', which the chat template does not know"),
        (FIRST_ONLY + "{# #}", {"role": ""}, 'no "role"'),
        ("{{ messages[0].content }}{{ 'user' }}", {"role": "system"}, r"does not show messages\[1\], of the role 'system'"),
        (CHATML, {"contnet": "late"}, "key 'contnet', which the chat template never reads; did you mean 'content'"),
        (CHATML, {"weather": "rain"}, "key 'weather', which the chat template never reads"),
        (CHATML, {"images": [1]}, "key 'images'"),
        (CHATML, {"tool_calls": [{"function": {"name": "find"}}]}, "key 'tool_calls'"),
        (CHATML, {"content": None, "contents": "x"}, "is 'contents' meant to be it"),
        (CHATML, {"content": b"x"}, "holds b'x' as"),
        (CHATML, {"content": {"type": "text", "text": "x"}}, "a list of parts"),
        (CHATML, {"content": [{"type": "text", "text": "x", "colour": "red"}]}, r"\[0\] has the key 'colour'"),
    ],
)
def test_what_a_message_loses_in_the_template_is_refused_by_name(tokenizer_with, template, message, named):
    given = {key: value for key, value in {"role": "user", "content": "x", **message}.items() if value is not None}
    with pytest.raises(ValueError, match=named):
        tokenizer_with(template).apply_chat_template([*QUESTION, given])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (CHATML, {"role": "critic"}),  # the template writes it
        (KNOWS_CRITICS, {"role": "critic"}),
        (CHATML, {"role": "tool", "tool_call_id": "7"}),
        (CHATML, {"name": "Lars"}),
        (CHATML, {"refusal": None, "annotations": [], "tool_calls": None, "audio": None}),  # as the client of OpenAI gives it back
        (CHATML, {"content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}),
        (READS_KEYS, {"weather": "rain", "mood": "good"}),
        (WRITES_ALL, {"role": "critic", "weather": "rain"}),
    ],
)
def test_what_a_template_reads_or_what_has_no_effect_is_taken(tokenizer_with, template, message):
    tokenizer = tokenizer_with(template)
    text = tokenizer.apply_chat_template([*QUESTION, {"role": "user", "content": "x", **message}], tokenize=False)
    assert "x" in text and message.get("weather", "") in text
    assert message["role"] in text or template == KNOWS_CRITICS if "role" in message else True


def test_looking_for_what_is_lost_takes_as_many_renderings_however_long_the_conversation():
    import quire.messages

    for turns in (2, 2000):
        rendered = []
        messages = [{"role": "critic", "content": "x"}] * turns
        quire.messages.check_shown(messages, ["messages"], lambda given: rendered.append(1) or json.dumps(given))
        assert len(rendered) == 1


def test_a_turn_that_only_calls_tools_needs_no_content(tokenizer_with):
    calls = [{"type": "function", "function": {"name": "find", "arguments": {}}}]
    template = "{% for message in messages %}{{ message.content or message.tool_calls | tojson }}{% endfor %}"
    tokenizer = tokenizer_with(template)
    for turn in ({"role": "assistant", "tool_calls": calls}, {"role": "assistant", "content": None, "tool_calls": calls}):
        assert '"find"' in tokenizer.apply_chat_template([*QUESTION, turn], tokenize=False)


def test_a_model_for_chat_that_says_nothing_to_a_plain_prompt_is_remarked_once():
    with quire.LLM(MODEL, threads=1) as llm:
        eos = {"temperature": 0, "logit_bias": {llm.tokenizer.eos_token_id: 1000}}
        with pytest.warns(UserWarning, match=r"ended its answer at once.*llm\.chat"):
            assert llm.generate("What is the capital of France?", eos).text == ""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            llm.generate("What is the capital of France?", eos)
            llm.generate([5, 6], eos)
