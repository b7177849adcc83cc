"""schemathesis reads /openapi.json and asks what it allows, and what it does not: nothing fails, errors have one shape."""
import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from serve import serving

EXAMPLES = 4  # for each operation, of each kind
ANSWERED_5XX = {501, 503, 504}
LENGTHS = ("max_tokens", "max_completion_tokens")
BOUNDED = settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, phases=(Phase.explicit, Phase.generate),
                   suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Yields a server of its own, whose answers are short: generated requests ask for anything."""
    with serving(tmp_path_factory.mktemp("schema"), "--default-max-tokens", 4, "--request-timeout", 5) as running:
        yield running


@pytest.fixture(scope="module")
def api_schema(own):
    return schemathesis.openapi.from_dict(httpx.get(f"{own.url}/openapi.json").json())


def shortened(value):
    """Returns the body with short answers, wherever it asks for a length."""
    if isinstance(value, dict):
        return {key: min(each, 4) if key in LENGTHS and type(each) is int else shortened(each) for key, each in value.items()}
    return [shortened(each) for each in value] if isinstance(value, list) else value


def check(case, own):
    case.body = shortened(case.body)
    response = case.call(base_url=own.url, timeout=30)
    said = f"{case.method} {case.formatted_path} {case.body!r}: {response.status_code} {response.text}"
    assert response.status_code < 500 or response.status_code in ANSWERED_5XX, said
    assert response.headers["x-request-id"], said
    if response.status_code >= 400 and case.method != "HEAD":
        assert {"message", "type", "param", "code"} <= set(response.json()["error"]), said


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.value)
def test_whatever_is_asked_is_answered_or_refused_in_one_shape(api_schema, own, mode):
    asked = []
    for result in api_schema.get_all_operations():
        operation = result.ok()

        @BOUNDED
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case):
            asked.append(case.operation.label)
            check(case, own)

        try:
            ask()
        except Exception as reason:  # an operation without anything to be wrong in
            if "Unsatisfiable" not in type(reason).__name__ and "Impossible" not in str(reason):
                raise
    assert len(set(asked)) >= 10 and own.process.poll() is None


def test_the_schema_names_the_endpoints_that_clients_use(api_schema):
    paths = set(api_schema.raw_schema["paths"])
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/generate", "/v1/compositions", "/metrics"} <= paths
