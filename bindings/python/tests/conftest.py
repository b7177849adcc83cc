"""Shared models of the Python tests. The demo model lies in the tree."""

import json
import pathlib

import pytest

import quire

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODEL = ROOT / "models" / "cardfile" / "model"


@pytest.fixture(scope="session")
def llm():
    with quire.LLM(MODEL, threads=2) as model:
        yield model


@pytest.fixture(scope="session")
def goldens():
    with open(MODEL / "golden.jsonl") as lines:
        rows = [json.loads(line) for line in lines]
    for row in rows:
        row["prompt"] = [token for piece in row["pieces"] for token in piece]
    return rows
