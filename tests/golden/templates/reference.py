"""The reference that Quire's chat templates are compared with: jinja2 3.1.6, set up as transformers does."""

import datetime
import functools
import json

import jinja2
import jinja2.ext
import jinja2.sandbox

JINJA2_VERSION = "3.1.6"
# Local time that strftime_now shows, in seconds since 1970.
NOW = 1_721_999_045  # 2024-07-26 13:04:05

if jinja2.__version__ != JINJA2_VERSION:
    raise SystemExit(f"needs jinja2 {JINJA2_VERSION}, found {jinja2.__version__}")


class Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %} passes its body through."""

    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_pass"), [], [], body).set_lineno(lineno)

    def _pass(self, caller):
        return caller()


class Namespace(jinja2.utils.Namespace):
    """Refuses attributes that begin with an underscore, as transformers' does."""

    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            Namespace._check(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name, value):
        Namespace._check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"bad attribute {name!r}")


class Dict:
    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(form):
    now = datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None)
    return now.strftime(form)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    env.globals["dict"] = Dict()
    env.globals["namespace"] = Namespace
    return env


ENVIRONMENT = environment()


@functools.lru_cache(maxsize=8)
def compiled(template):
    return ENVIRONMENT.from_string(template)


def render(template, variables):
    """Returns (text, None) or (None, reason). Variables go through JSON, as they reach the C++ side."""
    try:
        return compiled(template).render(**json.loads(json.dumps(variables))), None
    except Exception as error:  # noqa: BLE001: whatever Python raises is a refusal
        return None, f"{type(error).__name__}: {error}"
