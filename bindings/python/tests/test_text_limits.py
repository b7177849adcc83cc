"""Work on text ends when asked, and is refused where a file makes it endless."""

import json
import signal
import time

import pytest
from quire.tokenizer import Tokenizer

LETTERS = {"a": 0, "b": 1}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def open_tokenizer(folder, **sections):
    model = dict(type="BPE", vocab=LETTERS, merges=[])
    (folder / "tokenizer.json").write_text(json.dumps(dict(model=model, **sections)))
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(chat_template=TEMPLATE)))
    return Tokenizer.open(folder)


def search_forever():
    return dict(type="Split", pattern=dict(Regex="(a+)+[xy]"), behavior="Isolated")


class Alarm(Exception):
    pass


def seconds_after_signal(call):
    """Returns how long `call` goes on after a signal whose handler raises. At most 0.02 s go by until the handler
    runs."""
    sent = 0.1

    def handler(*_):
        raise Alarm

    before = signal.signal(signal.SIGALRM, handler)
    try:
        start = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, sent)
        with pytest.raises(Alarm):
            call()
        return time.monotonic() - start - sent
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_encoding_and_templates_end_soon_after_a_signal(tmp_path):
    tokenizer = open_tokenizer(tmp_path, pre_tokenizer=search_forever())
    text = "a" * 2_000_000  # the limits grow with the text
    assert seconds_after_signal(lambda: tokenizer.encode(text)) < 0.1
    assert seconds_after_signal(lambda: tokenizer.apply_chat_template([dict(role="user", content=text)])) < 0.1


def test_endless_work_is_a_value_error_that_says_what_ran_out(tmp_path):
    with pytest.raises(ValueError, match="more than .* steps; shorten the text"):
        open_tokenizer(tmp_path, pre_tokenizer=search_forever()).encode("a" * 44_000)
    doubling = dict(type="Replace", pattern=dict(String="a"), content="aa")
    tokenizer = open_tokenizer(tmp_path, normalizer=dict(type="Sequence", normalizers=[doubling] * 60))
    with pytest.raises(ValueError, match="writes more than .*; shorten the text"):
        tokenizer.encode("a")
    assert tokenizer.encode("b") == [1]


def test_ids_of_padding_decode_to_nothing_and_others_are_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(dict(vocab_size=80)))
    tokenizer = open_tokenizer(tmp_path, decoder=dict(type="Fuse"))
    assert tokenizer.decode([0, 77, 1]) == "ab"
    for outside in (-1, 80):
        with pytest.raises(ValueError, match=str(outside)):
            tokenizer.decode([outside])
