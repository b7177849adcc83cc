"""schemathesis reads /openapi.json and asks what it allows, and what it does not: nothing fails, errors have one shape."""
import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from serve import serving

EXAMPLES = 6  # for each operation
ANSWERED_5XX = {501, 503, 504}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A server of its own, whose answers are short: what is generated asks for anything."""
    with serving(tmp_path_factory.mktemp("schema"), "--default-max-tokens", 4, "--request-timeout", 5) as running:
        yield running


@pytest.fixture(scope="module")
def api_schema(own):
    return schemathesis.openapi.from_dict(httpx.get(f"{own.url}/openapi.json").json())


schema = schemathesis.pytest.from_fixture("api_schema")


@schema.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_whatever_the_schema_allows_is_answered(case, own):
    if isinstance(case.body, dict):
        for field in ("max_tokens", "max_completion_tokens"):
            if isinstance(case.body.get(field), int):
                case.body[field] = min(case.body[field], 4)
    response = case.call(base_url=own.url)
    assert response.status_code < 500 or response.status_code in ANSWERED_5XX, response.text
    assert response.headers["x-request-id"]
    if response.status_code >= 400 and case.method != "HEAD":
        error = response.json()["error"]
        assert {"message", "type", "param", "code"} <= set(error), error


def test_the_schema_names_the_endpoints_that_clients_use(api_schema):
    paths = set(api_schema.raw_schema["paths"])
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/generate", "/v1/compositions", "/metrics"} <= paths
