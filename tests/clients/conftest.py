"""Shares one server over the demo model, and questions with known answers, between the tests of the server."""
import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from serve import has_server, serving

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it fetches a list of prices otherwise
for variable in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
    os.environ.pop(variable, None)

KEEPER = "You are the keeper of a card file. Answer from the cards."
ADA = "Card 7. Ada trades in apples. They live in Foxley."
LARS = "Card 9. Lars carries a lantern. They live in Thornby."
GRETA = "Card 4. Greta keeps a heron. They live in Elmford."
QUESTION = "Where does Ada live?"
ANSWER = "Foxley."


def asked(question=QUESTION, cards=(ADA, LARS)):
    """Returns the messages of a question over cards."""
    return [{"role": "system", "content": " ".join([KEEPER, *cards])}, {"role": "user", "content": question}]


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    assert has_server(), "the program was built without QUIRE_SERVER"
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="session")
def base_url(server):
    return f"{server.url}/v1"
