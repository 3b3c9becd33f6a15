"""Foreign templates: nothing hangs, nothing eats the memory, nothing reaches Python."""

# ruff: noqa: E501 (a template and what it does are read best in one line)

from __future__ import annotations

import resource
import time

import pytest

from qwen3app.text import sandbox
from qwen3app.text.errors import TextError
from qwen3app.text.template import ChatTemplate

from .conftest import official_tokenizer, seconds_allowed

HI = [{"role": "user", "content": "hi"}]


def from_source(source: str) -> ChatTemplate:
    return ChatTemplate(source, official_tokenizer(), "test template")


LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}"
HOSTILE = {
    "nested loops": LOOP + "{% endfor %}{% endfor %}",
    "nested loops that write": LOOP + "x{% endfor %}{% endfor %}",
    "output": "{% for a in range(99999) %}{{ 'xxxxxxxxxx' * 100 }}{% endfor %}",
    "output in a macro": "{% macro m() %}{% for a in range(99999) %}{{ 'x' * 100000 }}{% endfor %}{% endmacro %}{{ m() }}",
    "output in a block set": "{% set x %}{% for a in range(99999) %}{{ 'x' * 100000 }}{% endfor %}{% endset %}",
    "range": "{% for a in range(1000000000) %}{% endfor %}",
    "text times": "{{ 'x' * 10000000000 }}",
    "times text": "{{ 10000000000 * 'x' }}",
    "list times": "{{ [1] * 10000000000 }}",
    "power": "{{ 9 ** 999999999 }}",
    "power tower": "{{ 9 ** 9 ** 9 ** 9 ** 9 }}",
    "product": "{% set n = namespace(x=9) %}{% for a in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "doubling with +": "{% set n = namespace(x='ab') %}{% for a in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "doubling with ~": "{% set n = namespace(x='ab') %}{% for a in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "doubling a list": "{% set n = namespace(x=[1]) %}{% for a in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "replace filter": "{% set n = namespace(x='aa') %}{% for a in range(60) %}{% set n.x = n.x|replace('a', n.x) %}{% endfor %}",
    "replace method": "{% set n = namespace(x='aa') %}{% for a in range(60) %}{% set n.x = n.x.replace('a', n.x) %}{% endfor %}",
    "replace nothing": "{% set n = namespace(x='aa') %}{% for a in range(60) %}{% set n.x = n.x.replace('', n.x) %}{% endfor %}",
    "join filter": "{% set n = namespace(x='aa') %}{% for a in range(60) %}{% set n.x = [n.x, n.x, n.x]|join %}{% endfor %}",
    "join method": "{% set n = namespace(x='aa') %}{% for a in range(60) %}{% set n.x = n.x.join([n.x, n.x]) %}{% endfor %}",
    "many copies": "{% set n = namespace(x=[]) %}{% for a in range(9999) %}{% set n.x = n.x + ['x' * 9999999] %}{% endfor %}",
    "upper copies": "{% set x = 'x' * 9999999 %}{% for a in range(9999) %}{{ x|upper|length }}{% endfor %}",
    "center": "{{ 'x'|center(10000000000) }}",
    "center method": "{{ 'x'.center(10000000000) }}",
    "ljust": "{{ 'x'.ljust(10000000000) }}",
    "zfill": "{{ 'x'.zfill(10000000000) }}",
    "expandtabs": "{{ '\t'.expandtabs(10000000000) }}",
    "indent": "{{ 'x\ny'|indent(10000000000) }}",
    "batch": "{{ [1]|batch(10000000000, 'x')|list }}",
    "slice": "{{ [1]|slice(10000000000, 'x')|list }}",
    "tojson indent": "{{ [1]|tojson(indent=10000000000) }}",
    "percent": "{{ '%10000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (10000000000, 1) }}",
    "format method": "{{ '{:>10000000000}'.format(1) }}",
    "format method nested": "{{ '{:>{}}'.format(1, 10000000000) }}",
    "format filter": "{{ '%10000000000d'|format(1) }}",
    "strftime": "{{ strftime_now('%10000000000d') }}",
    **{
        f"doubly nested, {use}": "{% set n = namespace(a=[0], b=[0]) %}{% for i in range(40) %}{% set n.a = [n.a, n.a] %}"
        "{% set n.b = [n.b, n.b] %}{% endfor %}{{ " + use + " }}"
        for use in ("n.a == n.b", "n.a|tojson", "n.a|string", "n.a", "'%s' % n.a", "n.a ~ ''", "'{}'.format(n.a)")
    },
    "doubly nested tuple": "{% set n = namespace(a=(0,)) %}{% for i in range(40) %}{% set n.a = (n.a, n.a) %}{% endfor %}{{ {n.a: 1} }}",
    "doubly nested object": "{% set n = namespace(a=1) %}{% for i in range(40) %}{% set n.a = {'x': n.a, 'y': n.a} %}{% endfor %}{{ n.a == 1 }}",
    "doubly nested dict()": "{% set n = namespace(a=1) %}{% for i in range(40) %}{% set n.a = dict(x=n.a, y=n.a) %}{% endfor %}{{ n.a == 1 }}",
    "doubly nested arguments": "{% macro m(x, n) %}{{ m([x, x], n - 1) if n else x }}{% endmacro %}{{ m([0], 40) }}",
    "doubly nested slices": "{% set n = namespace(a=[0, 0]) %}{% for i in range(40) %}{% set n.a = [n.a[:], n.a[:]]|batch(2)|first %}{% endfor %}{{ n.a }}",
    "deeply nested": "{% set n = namespace(a=[], b=[]) %}{% for i in range(9999) %}{% set n.a = [n.a] %}{% set n.b = [n.b] %}{% endfor %}{{ n.a == n.b }}",
    "sum of lists": "{{ ([[0] * 1000] * 100000)|sum(start=[])|length }}",
    "long text in many places": "{% set s = 'x' * 9999999 %}{{ ([s] * 9999)|tojson|length }}",
    "bytes": "{{ ('a'.encode('utf-8') * 10000000000)|length }}",
    "bytes of a number": "{{ (65).to_bytes(10000000000, 'big')|length }}",
    "bytes by attr": "{{ ('a'|attr('encode'))()|length }}",
    "macro recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "exponential macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "recursive loop": "{% set x = [1, 2] %}{% for a in x recursive %}{{ loop(x) }}{% endfor %}",
    "call block": "{% macro m(n) %}{% if n %}{% call m(n - 1) %}{% endcall %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "namespace internals": "{{ namespace(a=1).__class__.x }}",
    "string internals": "{{ 'a'.upper.__self__.x }}",
    "globals": "{{ raise_exception.__globals__.x }}",
    "format attribute": "{{ '{0.__class__.__mro__}'.format(1)[9999] }}{{ undefined.x.y }}",
    "budget": "{{ self._TemplateReference__context.parent.x.y }}",
    "change messages": "{{ messages.append(1) }}",
    "lipsum": "{{ lipsum(n=100000) }}",
    "import": "{% import 'os' as os %}{{ os }}",
    "division": "{{ 1 / 0 }}",
    "none": "{{ none + 1 }}",
    "iterate a number": "{% for a in 5 %}{% endfor %}",
    "missing key": "{{ messages[7].content.x }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_end_with_one_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_STEPS", 50_000)  # the same paths, in a fifth of the time
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    with pytest.raises(TextError) as caught:
        from_source(HOSTILE[name]).render(HI)
    assert time.process_time() - begin < seconds_allowed(8)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 700 * 1024  # KiB
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    message.encode()


def test_time_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    template = from_source("{% for a in messages[0].n %}{% endfor %}")
    monkeypatch.setattr(sandbox, "MAX_SECONDS", -1.0)
    with pytest.raises(TextError, match="takes longer than -1 seconds"):
        template.render([{"role": "user", "content": "", "n": [1]}])
    assert template.render(HI).text == ""


def test_what_a_template_may_do() -> None:
    """Ordinary uses of what is bounded."""
    for source, text in {
        "{{ '=' * 10 }}{{ [1, 2] * 2 }}": "==========[1, 2, 1, 2]",
        "{% for a, b in [(1, 2), (3, messages[0].role)] %}{{ a }}{{ b }}{% endfor %}{{ {'a': messages} == {'a': messages} }}": "123userTrue",
        "{% set n = namespace(m=[]) %}{% for i in range(9000) %}{% set n.m = n.m + [messages[0]] %}{% endfor %}{{ n.m|length }}": "9000",
        "{{ 2 ** 10 }}|{{ 7 % 4 }}|{{ 3 * 4 }}|{{ 2 ** -1 }}": "1024|3|12|0.5",
        "{{ '%s in %d: %05.1f 100%% 20240101' % ('a', 3, 0.25) }}": "a in 3: 000.2 100% 20240101",
        "{{ '{} {:>4} {{x: 20240101}}'.format('a', 'b') }}": "a    b {x: 20240101}",
        "{{ '%s-%s' | format('a', 'b') }}": "a-b",
        "{{ 'a' | center(5) }}|{{ 'a\nb' | indent(2) }}|{{ 'ab'.ljust(4) }}": "  a  |a\n  b|ab  ",
        "{{ 'aXbXc' | replace('X', '-', 1) }}|{{ 'aXb'.replace('X', '-') }}": "a-bXc|a-b",
        "{{ ['a', 'b'] | join(', ') }}|{{ ','.join(['a', 'b']) }}|{{ [1, 2] | join }}": "a, b|a,b|12",
        "{{ [{'a': {'b': 1}}, {'a': {'b': 2}}] | join('+', attribute='a.b') }}": "1+2",
        "{{ [[5, 6], [7, 8]] | join('+', attribute=1) }}{{ ['x'] | join('', 'y') }}": "6+8",
        "{{ [1, 2, 3] | batch(2) | list }}|{{ range(3) | list }}": "[[1, 2], [3]]|[0, 1, 2]",
        "{% for a in [1, 2] %}{{ loop.index }}{{ loop.last }}{{ loop.length }}{% endfor %}": "1False22True2",
        "{% for a in [1, [2, [3]]] recursive %}{{ loop(a) if a is sequence else a }}{% endfor %}": "123",
        "{% for a in [] %}{% else %}none{% endfor %}": "none",
        "{% macro m(a) %}[{{ a }}{{ caller() }}]{% endmacro %}{% call m('x') %}y{% endcall %}": "[xy]",
        "{% filter upper %}a{{ 'b' ~ 1 }}{% endfilter %}": "AB1",
        "{% for a in range(9) %}{% if a == 2 %}{% continue %}{% elif a == 4 %}{% break %}{% endif %}{{ a }}{% endfor %}": "013",
        "{% set n = namespace(a=1) %}{{ n.a }}{{ n.b }}{{ n._c }}|{{ {'items': 5}.items is callable }}{{ {'x': 5}.x }}{{ {}.x }}": "1|True5",
        "{{ messages | map(attribute='content') | join }}{{ undefined }}": "hi",
        "  {% if true %}\nx\n  {% endif %}\ny": "x\ny",
    }.items():
        assert from_source(source).render(HI).text == text, source
