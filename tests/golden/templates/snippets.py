"""Small templates that pin the semantics of the language, one rule or trap each."""

VARIABLES = {
    "messages": [{"role": "user", "content": "Hello World"}, {"role": "assistant", "content": "it's \"fine\"\n"}],
    "s": "Hello, World",
    "u": "Grüße, ÎLE ǆ ŉ ß ΑΣ 日本 🙂",
    "n": 42,
    "f": 3.14159,
    "t": True,
    "z": None,
    "l": [3, 1, 2],
    "e": [],
    "words": ["banana", "Apple", "cherry", "apple"],
    "d": {"b": 1, "a": 2, "C": [1, {"x": None}]},
    "people": [{"name": "Bo", "age": 9, "at": {"x": 2}}, {"name": "al", "age": 30, "at": {"x": 1}}, {"name": "Cy"}],
    "ws": "  \t x y \n ",
    "lines": "one\ntwo\r\n\n three",
    "html": "<a href='x'>&\"</a>",
    "many": "aXbXcXd",
    "floats": [1.0, 1e16, 1e15, 1e-5, 0.0001, 1.5, -0.0, 123456789.125, 1e100, 0.1, 2.5e-7],
}

# Printing and literals.
PRINT = r"""
{{ 1 }} {{ 1.5 }} {{ 1e3 }} {{ true }} {{ True }} {{ false }} {{ none }} {{ None }}
{{ floats }}|{{ 1/3 }}|{{ 1e22 }}|{{ 5e-324 }}
{{ [1, 'a', "b'c", 'q"', none, true, 1.0, (1,), (), {'k': [1]}] }}
{{ 'tab\tnl\n\\ \q \'' }} {{ "a" "b" 'c' }}
{{ u }} {{ [u] }}
{{ undefined_thing }}|{{ d.nothing }}|{{ d['nothing'] }}|{{ [undefined_thing] }}
{{ 1, 2 }} {{ (1) }} {{ (1,) }} {{ () }}
{{ messages }}
{{ 1.5e+3 }} {{ 1E-2 }} {{ d.C.0 }} {{ d.C.1.x }}
{{ 'unterminated }}
{{ 1 if true }}|{{ 1 if false }}|{{ 1 if false else 2 }}|{{ 1 if 0 else 2 if 0 else 3 }}
{{ -3 }} {{ - -3 }} {{ not true }} {{ not not 1 }} {{ -f }} {{ -t }}
"""

OPERATORS = r"""
{{ 7 + 2 }} {{ 7 - 2 }} {{ 7 * 2 }} {{ 7 / 2 }} {{ 7 // 2 }} {{ 7 % 2 }}
{{ -7 // 2 }} {{ -7 % 2 }} {{ 7 // -2 }} {{ 7 % -2 }}
{{ 1 / 0 }}
{{ 1 // 0 }}
{{ 1 % 0 }}
{{ 0 ** -1 }}
{{ 'a' + 'b' }} {{ 'ab' * 3 }} {{ 3 * 'ab' }} {{ 'ab' * 0 }} {{ 'ab' * -1 }} {{ [1] + [2] }} {{ (1,) + (2,) }}
{{ 'a' + 1 }}
{{ 1 + 'a' }}
{{ [1] + (2,) }}
{{ 'a' ~ 1 ~ none ~ 1.0 ~ [1] ~ undefined_thing }}
{{ true + true }} {{ true * 3 }} {{ 'a' * true }}
{{ 1 < 2 }} {{ 1 <= 1 }} {{ 2 > 3 }} {{ 1 == 1.0 }} {{ 1 == true }} {{ 'a' < 'b' }} {{ 'a' < 'B' }}
{{ 1 < 'a' }}
{{ none < 1 }}
{{ d < d }}
{{ undefined_thing < 1 }}
{{ undefined_thing + 1 }}
{{ undefined_thing == none }} {{ undefined_thing == other_undefined }} {{ none == none }} {{ [] == [] }} {{ {} == {} }} {{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }}
{{ [1] == (1,) }} {{ 'a' == 'a' }} {{ 1 != 2 }} {{ 'a' != 1 }} {{ range(2) == [0, 1] }} {{ range(2) == range(2) }}
{{ 'ell' in 'hello' }} {{ '' in 'x' }} {{ 'x' not in 'y' }} {{ 1 in [1] }} {{ 1.0 in [1] }} {{ 'b' in d }} {{ 'zz' in d }} {{ 1 in (2, 3) }} {{ 2 in range(3) }} {{ none in [none] }}
{{ 1 in 'abc' }}
{{ 1 in none }}
{{ 1 in undefined_thing }} {{ undefined_thing in [1] }} {{ 'b' in d.keys() }} {{ [] in [[]] }}
{{ [] in d }}
{{ 1 and 2 }} {{ 0 and 2 }} {{ 1 or 2 }} {{ 0 or '' }} {{ '' or none }} {{ not [] }} {{ not {} }} {{ not 0.0 }} {{ not '' }} {{ not undefined_thing }}
{{ true and not false }} {{ not true or true }} {{ 1 + 2 * 3 - 4 // 3 }} {{ (1 + 2) * 3 }} {{ 2 * 3 ~ 4 + 5 }}
{{ 9223372036854775807 }} {{ -9223372036854775807 - 1 }}
{{ '%s' % 'one' }} {{ '%s' % [1, 2] }} {{ '%s' % none }}
{{ '%s %s' % 'one' }}
{{ '%s' % ('a', 'b') }}
{{ '%d' % 'a' }}
{{ '%s' % d }}
{{ l[0] }} {{ l[-1] }} {{ l[10] }} {{ s[0] }} {{ s[-1] }} {{ s[99] }} {{ u[-1] }} {{ u[0:6] }} {{ l['x'] }} {{ s['upper']() }} {{ (1, 2, 3)[1] }} {{ range(5)[2] }} {{ d['b'] }} {{ d[1] }} {{ n[0] }} {{ none['x'] }}
{{ l[1:] }} {{ l[:-1] }} {{ l[::-1] }} {{ s[7:] }} {{ s[:5] }} {{ s[-5:-1] }} {{ s[100:] }}| {{ s[-100:3] }} {{ (1, 2, 3)[:2] }} {{ l[5:1] }} {{ s[none:3] }} {{ l[-2:] }}
{{ l[::0] }}
{{ l['a':] }}
{{ z[1:] }}
{{ undefined_thing.x }}
{{ undefined_thing['x'] }}
{{ undefined_thing[1:] }}
{{ d.nothing.more }}
{{ none.x }}|{{ n.x }}|{{ l.x }}|{{ s.x }}
{{ d[[]] }}|
"""

METHODS = r"""
{{ ws.strip() }}|{{ ws.lstrip() }}|{{ ws.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'abcba'.strip('ab') }}|{{ 'éaé'.strip('é') }}|{{ ws.strip(none) }}
{{ s.upper() }} {{ s.lower() }} {{ 'hELLO wORLD'.capitalize() }} {{ "they're bill's".title() }} {{ u.upper() }} {{ u.lower() }} {{ u.title() }} {{ 'ΑΣ ΑΣΑ Σ'.lower() }} {{ 'ﬁ İ'.lower() }} {{ 'ﬁx'.title() }} {{ 'ǆ'.capitalize() }}
{{ 'a,b,,c'.split(',') }} {{ 'a b c'.split(' ', 1) }} {{ ''.split(',') }} {{ 'abc'.split('abc') }} {{ 'aXbXc'.split('X', 0) }}
{{ 'a'.split('') }}
{{ 'x'.split(1) }}
{{ 'hello'.replace('l', 'L') }} {{ 'hello'.replace('l', 'L', 1) }} {{ 'abc'.replace('', '-') }} {{ 'é日'.replace('', '-', 2) }} {{ ''.replace('', 'x') }} {{ 'aaaa'.replace('aa', 'b') }}
{{ 'hello'.startswith('he') }} {{ 'hello'.endswith('lo') }} {{ 'x'.startswith('') }}
{{ 'hello'.startswith(1) }}
{{ 'hello'.index('z') }}
{{ '-'.join([1]) }}
{{ 'x{}y{}'.format(1, 'a') }} {{ '{{}}'.format() }} {{ '{}'.format(none) }} {{ '{}'.format(undefined_thing) }} {{ '{}'.format(true) }}
{{ '{}{}'.format(1) }}
{{ '{'.format() }}
{{ '{a}'.format() }}
{{ '{0}{}'.format(1, 2) }}
{{ '{:d}'.format('x') }}
{{ '{:d}'.format(1.5) }}
{{ d.get('b') }} {{ d.get('x') }} {{ d.get('x', 'dflt') }} {{ d.get('x', default=1) if false else 1 }} {{ d.keys() | list }} {{ d.values() | list }} {{ d.items() | list }} {{ d.items() | length }}
{{ l.index(99) }}
{{ l.append(1) }}
{{ l.append is defined }} {{ d.pop is defined }} {{ l.append }}|{{ d.update }}|
{{ d.pop('b') }}
{{ d.__class__ }}|{{ d._private }}|
{{ ''.__class__.__mro__ }}
{{ s.nothing() }}
{{ s() }}
{{ n() }}
{{ no_such_function() }}
{{ d.b() }}
"""

FILTERS = r"""
{{ ws | trim }}|{{ 'xax' | trim('x') }}|{{ n | trim }}|{{ none | trim }}|{{ undefined_thing | trim }}|
{{ d | tojson }} {{ u | tojson }} {{ u | tojson(ensure_ascii=true) }} {{ d | tojson(indent=2) }} {{ [] | tojson(indent=2) }} {{ {} | tojson(2) }} {{ [1, [2, []]] | tojson(indent=4) }} {{ d | tojson(separators=(',', ':')) }} {{ d | tojson(sort_keys=true) }} {{ (1, 2) | tojson }} {{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }} {{ 'a' | safe | tojson }} {{ [1, {'a': []}] | tojson(indent=0) }}
{{ undefined_thing | tojson }}
{{ d.items() | tojson }}
{{ range(2) | tojson }}
{{ namespace() | tojson }}
{{ {(1, 2): 3} | tojson }}
{{ {1: 1, 'a': 2} | tojson(sort_keys=true) }}
{{ [1, 2] | join }} {{ [1, 'a', none, 1.5] | join(', ') }} {{ people | join(', ', attribute='name') }} {{ 'abc' | join('-') }} {{ d | join('+') }} {{ [] | join(',') }} {{ undefined_thing | join(',') }} {{ [1, 2] | join(0) }}
{{ none | join(',') }}
{{ undefined_thing | default('D') }} {{ none | default('D') }} {{ '' | default('D') }} {{ '' | default('D', true) }} {{ d.x | default }}| {{ 'v' | default('D') }} {{ undefined_thing | default({}) }}
{{ l | length }} {{ s | length }} {{ u | length }} {{ d | count }} {{ e | length }} {{ undefined_thing | length }} {{ (1, 2) | length }} {{ range(7) | length }}
{{ n | length }}
{{ none | length }}
{{ (l | map('string')) | length }}
{{ s | upper }} {{ s | lower }} {{ "they're bill-friends (from)the [uk] <x> {y}" | title }} {{ 'hELLO' | capitalize }} {{ n | upper }} {{ none | lower }} {{ 'ŉ ǆ ß' | title }}
{{ l | first }} {{ l | last }} {{ e | first }}| {{ s | first }} {{ s | last }} {{ d | first }} {{ d | last }} {{ undefined_thing | first }}|
{{ l | map('abs') | last }}
{{ 'abc' | list }} {{ d | list }} {{ range(3) | list }} {{ (1, 2) | list }} {{ undefined_thing | list }} {{ d.items() | list }}
{{ none | list }}
{{ n | string }}{{ none | string }}{{ 1.50 | string }}{{ 'x' | string }}{{ [1] | string }}
{{ '42' | int }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ ' 5 ' | int }} {{ true | int }} {{ none | int }} {{ [] | int }} {{ '-7' | int }} {{ '+7' | int }} {{ 'inf' | int(3) }} {{ '010' | int }}
{{ undefined_thing | int }}
{{ 'hello' | replace('l', 'L') }} {{ 'hello' | replace('l', 'L', 1) }} {{ 123 | replace(2, 'x') }} {{ 'aaa' | replace('a', 'aa') }} {{ none | replace('N', 'n') }} {{ 'abc' | replace('', '.') }}
{{ d | items | list }} {{ undefined_thing | items | list }}
{{ l | items | list }}
{{ d | dictsort }}
{{ {'a': 1, 2: 3} | dictsort }}
{{ words | map('upper') | list }} {{ people | map(attribute='name') | list }} {{ [[1, 2], [3]] | map('length') | list }} {{ [[1, 2], [3]] | map(attribute=0) | list }} {{ words | map('replace', 'a', 'o') | list }} {{ [1, 2] | map('string') | join('|') }} {{ ['a'] | map('default', 'x') | list }}
{{ words | map('nofilter') | list }}
{{ [0, 1, '', 'a', none] | select | list }} {{ [0, 1, ''] | reject | list }} {{ [1, 2, 3] | reject('equalto', 2) | list }} {{ l | select('in', [1, 2]) | list }} {{ none | select | list }} {{ words | select('==', 'Apple') | list }}
{{ people | selectattr('age') | map(attribute='name') | list }} {{ people | selectattr('age', 'defined') | list | length }} {{ people | rejectattr('age', 'defined') | map(attribute='name') | list }} {{ people | selectattr('name', 'equalto', 'Bo') | list }} {{ people | selectattr('name', 'in', ['Bo', 'Cy']) | list | length }} {{ messages | selectattr('role', 'eq', 'user') | list | length }} {{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='content') | first }}
{{ l | select('notest') | list }}
{{ words | unique | list }} {{ words | unique(true) | list }} {{ [1, 1.0, true, 2] | unique | list }} {{ people | unique(attribute='name') | list | length }}
{{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ l | sort(reverse=true) }} {{ people[:2] | sort(attribute='age') | map(attribute='name') | list }} {{ 'hello' | sort }} {{ d | sort }}
{{ [1, 'a'] | sort }}
{{ people | sort(attribute='age') }}
{{ l | reverse | list }} {{ d | reverse | list }} {{ (1, 2) | reverse | list }} {{ range(3) | reverse | list }}
{{ 'a' | abs }}
{{ lines | indent }}|{{ lines | indent(2, true) }}|{{ 'one' | indent(first=true) }}|{{ 'a\n' | indent }}|{{ '' | indent(2, true) }}|
{{ html | safe }} {{ ('<' | safe) + '<' }} {{ '<' + ('<' | safe) }} {{ ('<' | safe) ~ '<' }} {{ ('<' | safe | upper) + '<' }} {{ (html | safe)[0] + '<' }} {{ ('<b>' | safe | trim) + '&' }} {{ ('<b>' | safe | replace('b', 'i')) + '&' }} {{ ('a' | safe) == 'a' }} {{ ('<' | safe) * 2 + '<' }}
{{ ['a'] | sum }}
{{ l | min }} {{ l | max }} {{ words | min }} {{ words | max }} {{ e | min }}|
{{ [1, 'a'] | min }}
{{ s | no_such_filter }}
{% if false %}{{ s | no_such_filter }}{% endif %}ok
{% if true %}{{ s | no_such_filter }}{% endif %}
{{ (s | no_such_filter) if false else 'ok' }}
{{ s | upper | lower | title | replace('h', 'j') | length }} {{ 'a' ~ 'b' | upper }} {{ ('a' ~ 'b') | upper }} {{ 1 + 2 | string | int }} {{ not e | length }}
"""

TESTS = r"""
{{ s is defined }} {{ undefined_thing is defined }} {{ undefined_thing is undefined }} {{ d.b is defined }} {{ d.zz is defined }} {{ z is none }} {{ z is not none }} {{ s is string }} {{ n is number }} {{ f is number }} {{ t is number }} {{ n is integer }} {{ t is integer }} {{ f is float }} {{ n is float }} {{ d is mapping }} {{ l is mapping }} {{ l is iterable }} {{ s is iterable }} {{ n is iterable }} {{ l is sequence }} {{ s is sequence }} {{ d is sequence }} {{ d.items() is sequence }} {{ d.items() is iterable }} {{ n is sequence }} {{ t is boolean }} {{ n is boolean }} {{ t is true }} {{ t is false }} {{ 1 is true }} {{ false is false }} {{ undefined_thing is iterable }} {{ undefined_thing is sequence }} {{ undefined_thing is mapping }} {{ none is iterable }} {{ (1,) is sequence }} {{ range(1) is sequence }} {{ range(1) is iterable }}
{{ 'a' is in 'abc' }} {{ 1 is in [1] }} {{ 1 is eq 1 }} {{ 1 is equalto(2) }} {{ 1 is ne 2 }} {{ namespace is defined }}
{{ not s is string }} {{ s is string and n is number }} {{ s is not string or n is not number }} {{ n is defined and n > 40 }} {{ 1 if s is string else 2 }} {{ s is string == true }} {{ d.b is number }} {{ 5 is in l or 3 is in l }} {{ s is not defined }}
{{ undefined_thing.x is defined }}
{{ s is no_such_test }}
{% if false %}{{ s is no_such_test }}{% endif %}ok
{{ s is string is true }}
{{ 'a' is odd }}
"""

STATEMENTS = r"""
{% for x in l %}{{ x }}{% endfor %}|{% for x in e %}{{ x }}{% else %}none{% endfor %}|{% for x in l if x > 1 %}{{ x }}{% endfor %}|{% for x in l if x > 9 %}{% else %}none{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for c in 'abc' %}{{ c }}.{% endfor %}{% for x in undefined_thing %}never{% endfor %}
{% for x in none %}{% endfor %}
{% for x in 5 %}{% endfor %}
{% for a, b in [[1, 2, 3]] %}{% endfor %}
{% for a, b in [1] %}{% endfor %}
{% for x in words %}{{ loop.index }}/{{ loop.length }} {{ loop.index0 }} {{ loop.revindex }} {{ loop.revindex0 }} {{ loop.first }} {{ loop.last }} {{ loop.previtem }} {{ loop.nextitem }};{% endfor %}
{% for x in l %}{% for y in e if true %}{% else %}{{ loop.index }}{% endfor %}{% for y in [1, 2] %}{{ loop.index }}{{ loop.last }}{% endfor %}{{ loop.index }}{% endfor %}
{% for x in words if x != 'Apple' %}{{ loop.index }}{{ loop.length }}{{ loop.last }}{{ loop.nextitem }} {% endfor %}
{% set ns = namespace(n=0) %}{% for x in [1, 2, 3, 4] if ns.n < 2 %}{% set ns.n = ns.n + 1 %}{{ x }}{% endfor %}|{% set ns.n = 0 %}{% for x in [1, 2, 3, 4] if ns.n < 2 %}{% set ns.n = ns.n + 1 %}{{ x }}{{ loop.last }}{% endfor %}|{% set ns.n = 0 %}{% for x in [1, 2, 3, 4] if ns.n < 2 %}{{ loop.length }}{% set ns.n = ns.n + 1 %}{{ x }}{% endfor %}
{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}|{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}|{% for x in l %}{% break %}{% else %}else{% endfor %}|{% for x in l %}{% continue %}{% else %}else{% endfor %}|{% for x in [1, 2] %}{% if x == 2 %}{% break %}{% endif %}{% else %}else{% endfor %}
{% break %}
{% for x in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}
{% set x = 1 %}{% for i in l %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}|{% if true %}{% set x = 5 %}{% endif %}{{ x }}|{% if false %}{% set n = 0 %}{% endif %}{{ n }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set a, b = [b, a] %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}
{% set a = b = 1 %}
{% set a, b = [1] %}
{% set x %}block {{ n }}{% set inner = 1 %}{% endset %}{{ x }}|{{ inner }}
{% set ns = namespace(x=1) %}{% set ns.x = ns.x + 1 %}{% set ns.y = 'new' %}{{ ns.x }}{{ ns.y }}{{ ns.zz }}|{{ ns['x'] }}|{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}|{% set ns.a, ns.b = 1, 2 %}{{ ns.a }}{{ ns.b }}|{% set ns.blk %}text{% endset %}{{ ns.blk }}
{% set d.x = 1 %}
{% set nothing.x = 1 %}
{% set ns = namespace(_x=1) %}
{% set ns = namespace() %}{% set ns._x = 1 %}
{% set 1 = 2 %}
{% set true = 2 %}
{% if n > 50 %}a{% elif n > 40 %}b{% elif n > 30 %}c{% else %}d{% endif %}{% if e %}a{% else %}b{% endif %}{% if undefined_thing %}a{% endif %}{% if s and not z %}x{% endif %}
{% macro m(a, b=2, c='x') %}[{{ a }},{{ b }},{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c='y') }}{{ m(b=1, a=0) }}{{ m() }}{{ m(1) | upper }}{{ m(1) is string }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}
{% macro m(a=1, b) %}{% endmacro %}
{% macro fact(k) %}{% if k <= 1 %}1{% else %}{{ k * (fact(k - 1) | int) }}{% endif %}{% endmacro %}{{ fact(10) }}
{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, 2) }}
{% macro outer() %}{% macro inner() %}{{ n }}{% endmacro %}{{ inner() }}{% endmacro %}{{ outer() }}|{% set v1 = 1 %}{% macro see() %}{{ v1 }}{% endmacro %}{{ see() }}{% set v1 = 2 %}{{ see() }}|{% for i in [1, 2] %}{% macro in_loop() %}{{ i }}{% endmacro %}{{ in_loop() }}{% endfor %}
{% macro before() %}{{ later() }}{% endmacro %}{% macro later() %}L{% endmacro %}{{ before() }}
{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}body {{ n }}{% endcall %}|{% macro w(items) %}{% for i in items %}{{ caller(i, loop.index) }}{% endfor %}{% endmacro %}{% call(x, y=0) w(['a', 'b']) %}{{ x }}{{ y }};{% endcall %}
{% macro m() %}<{{ caller() }}>{% endmacro %}{{ m() }}
{% macro m(caller=none) %}{{ caller }}{% endmacro %}{{ m() }}{{ m(1) }}
{% call n() %}{% endcall %}
{% filter upper %}abc {{ s }}{% endfilter %}|{% filter replace('a', 'b') | upper %}aaa{% endfilter %}
{% filter length %}abc{% endfilter %}
{% raw %}{{ not }} {% parsed %}{% endraw %}|{%- raw -%} {{ x }} {%- endraw -%} |{% raw +%} x {%+ endraw %}
{% generation %}gen {{ n }}{% set g = 1 %}{% endgeneration %}{{ g }}
{# comment #}a{#- comment -#} b {# {{ x }} {% y %} #}c
{{ range(3) | list }}{{ range(1, 4) | list }}{{ range(5, 0, -2) | list }}{{ range(0) | list }}
{{ range(200000) }}
{{ range(1, 2, 0) }}
{{ range('a') }}
{{ raise_exception('stop here') }}
{{ raise_exception('item ' ~ n) }}
{{ strftime_now('%d %b %Y') }}
{% include 'x' %}
{% extends 'x' %}
{% unknown %}
{% if true %}
{% endif %}
{% for x in l %}{% endif %}
{{ }}
{% set %}
{{ 1 +* 2 }}
{{ (1 }}
{{ 1) }}
{{ [1, 2 }}
{{ s.  }}
{{ 'a' 1 }}
{% if %}x{% endif %}
{% for in l %}{% endfor %}
{% for loop in l %}{% endfor %}
{% macro %}{% endmacro %}
{{ {'a' 1} }}
{{ f(a=1, 2) }}
{{ a b }}
{# not closed
{% raw %} not closed
{{ not closed
{{ 1 }} }} %} #} {
{{ '{{' }} {{ '%}' }} {{ "}}" }} {{ {'a': {'b': 1}}['a']['b'] }} {{ {'a': {}}}}
{{ (messages | selectattr('role', 'equalto', 'user') | list)[-1].content }} {{ messages[0]['role'] }} {{ messages[-1].content.split('"')[1] }} {{ messages | length > 1 and messages[1].role == 'assistant' }}
{% if messages | selectattr('role', 'equalto', 'nobody') %}a generator is true{% endif %}
{% set g = l | map('string') %}{{ g | list }}{{ g | list }}
{% set g = l | select %}{{ g | list }}{{ g | list }}
{% set list2 = l + [4] %}{{ list2 }}{{ l }}
{% set x = namespace(items=[]) %}{% for m in messages %}{% set x.items = x.items + [m.role] %}{% endfor %}{{ x.items | join(',') }}
{% set loop = 5 %}{{ loop }}{% for x in [1] %}{{ loop.index }}{% endfor %}{{ loop }}
{{ loop is defined }}{% for x in [1] %}{{ loop is defined }}{% endfor %}
{{ none is none }}{{ None }}{{ True and False }}{{ (none) }}{{ {'none': none}.none }}
{%- set x = 1 -%}{{- x -}} y {{- x }} {{ x -}} z
{{ d | tojson | length }}{{ (d | tojson).replace('"', "'") }}{{ (s | tojson)[1:-1] }}
"""

# Templates of several lines, for white space control, and with characters that need escapes here.
BLOCKS = [
    "{{ ['tab\\t', 'nul\x00', '\x7f', '\u00a0', '\u00e9', '\u200b', '\U0001f642', 'both\\'\"'] }}",
    "{{ '\u3000a\u00a0'.strip() }}",
    "{{ [none, true, 1.0, 1e16, 'q\"\\\\\\n\x01\x7f/<>&\\''] | tojson }}",
    "a\n{% if true %}\n  b\n{% endif %}\nc\n",
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n\n",
    "  {%- if true -%}\n\n  b \n {%- endif -%}  \n c",
    "x {# c #}\ny\n  {# c #}\nz\n  {#- c -#}  \n w",
    "x\n  {{ s }}\n  {{- s }}  \n {{ s -}} \n y",
    "{% for x in l %}\n  - {{ x }}\n{% endfor %}\n",
    "{% for x in l -%}\n  - {{ x }}\n{%- endfor %}\nend",
    "a\r\nb\rc\n{% if true %}\r\nd\r\n{% endif %}\r\ne\r\n",
    "\t {% set x = 1 %}\t\n\t{{ x }}",
    "{% macro m() %}\n  x\n{% endmacro %}\n[{{ m() }}]",
    "{% set x %}\n  body\n{% endset %}\n[{{ x }}]",
    "{%- for m in messages %}\n    {{- '<|' + m.role + '|>\\n' + m.content | trim + '<|end|>\\n' }}\n{%- endfor %}\n",
    "line\\n\n{{ '\n' }}{{ \"multi\nline\" }}",
    "{{\n  s\n  |\n  upper\n}}\n{% if\n true\n%}\nx\n{%\nendif\n%}",
    "\n\n{% if true %}{% endif %}\n\n",
    "   ",
    "",
    "\n",
    "no newline{# c #}",
    "{% if true %}a{% endif %}\n{% if true %}b{% endif %}\n\n{% if true %}c{% endif %}",
    "\u00a0\u3000{% if true %}a{% endif %} {%- if true %}b{% endif %}",
]


def snippets():
    """Returns every line of the texts above, and the blocks."""
    for text in (PRINT, OPERATORS, METHODS, FILTERS, TESTS, STATEMENTS):
        yield from (line for line in text.split("\n") if line)
    yield from BLOCKS
