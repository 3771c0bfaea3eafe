"""Chat templates that ask for too much: every filter and test, operators and methods on big values.

`attacks` gives a few hundred templates by name. None of them is an honest one; each may be refused
or give a text within the limits, and nothing else.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

# Values that grow from themselves: as texts, lists and mappings of what is shared.
ROUNDS = 40


def grown(first: str, then: str, rounds: int = ROUNDS) -> str:
    """A namespace `n` whose `s` is made from itself again and again."""
    many = f"{{% for i in range({rounds}) %}}{{% set n.s = {then} %}}{{% endfor %}}"
    return f"{{% set n = namespace(s={first}) %}}{many}"


BIG = {
    "text": "{% set x = 'ab ' * 9999 * 130 %}",
    "text of marks": "{% set x = '<a>&' * 9999 * 100 %}",
    "range": "{% set x = range(99999) %}",
    "list": "{% set x = range(99999) | list %}",
    "texts": "{% set x = ['a' * 9999] * 400 %}",
    "lists": "{% set x = [[1, 2, 3, 'abc']] * 50000 %}",
    "number": "{% set x = 10 ** 70 %}",
    "mapping": "{% set x = {'a': 'b' * 9999, 'c': ['d' * 9999] * 300} %}",
    "shared lists": grown("[1]", "[n.s, n.s]") + "{% set x = n.s %}",
    "shared mappings": grown("{'a': 1}", "{'a': n.s, 'b': n.s}") + "{% set x = n.s %}",
    "shared tuples": grown("(1,)", "(n.s, n.s)") + "{% set x = n.s %}",
    "sum": grown("[1]", "n.s + n.s") + "{% set x = n.s %}",
    "doubled text": grown("'aaaa'", "n.s ~ n.s") + "{% set x = n.s %}",
    "deep": grown("[]", "[n.s]", 50000) + "{% set x = n.s %}",
}
FILTERS = [
    "abs", "attr('a')", "batch(9999)", "batch(2, 'x')", "capitalize", "center(9999)",
    "center(10**9)", "count", "default('y')", "dictsort", "escape", "filesizeformat", "first",
    "float", "forceescape", "groupby('a')", "indent(9999)", "indent(10**9)", "int", "items",
    "join('y' * 9999)", "join", "last", "length", "list", "lower", "map('upper') | list",
    "map('string') | join", "map('list') | list", "max", "min", "random",
    "reject('eq', 1) | list", "replace('a', 'b' * 9999)", "replace('', 'b' * 9999)", "reverse",
    "reverse | list", "round(10**9, 'ceil')", "safe", "select('string') | list", "slice(9999)",
    "slice(3) | list", "sort", "sort(case_sensitive=true)", "sort | join", "string", "striptags",
    "sum(start=[])", "sum", "title", "tojson", "tojson(indent=16)", "tojson(indent=10**9)", "trim",
    "truncate(10**9)", "unique | list", "upper", "urlencode", "urlize", "wordcount", "wordwrap(1)",
    "wordwrap(10**9)", "xmlattr", "pprint", "format(1)", "lower | upper | string | tojson | tojson",
    "string | string | list | string | list | string",
]  # fmt: skip
EXPRESSIONS = [
    "x == x[:]", "x == [x]", "x < x", "x in [x, x, x]", "[x, x] == [x, x]", "x ~ x ~ x ~ x",
    "x + x", "x * 9999", "x * 10**9", "x ** 10**9", "x % x", "(x, x) | string",
    "([x] * 9999) | string", "{'a': x, 'b': x} | tojson", "x[::-1]", "x[:] == x[:]",
    "x is in [x]", "x is eq x", "x is sameas x", "x | string | length", "dict(a=x, b=x) | string",
    "namespace(a=x)", "cycler(x, x).next() | string",
    "joiner(x)() ~ joiner(x)()", "'{:999999999}'.format(1)",
    "'{0}{0}{0}'.format(x)", "'%999999999d' % 1", "'%s%s' % (x, x)", "'a'.ljust(10**9)",
    "'a'.zfill(10**9)", "'\t'.expandtabs(10**9)", "x.replace('a', x)", "x.join(x)", "x.split('a')",
    "x.encode('utf-16') | string", "x.upper().lower().title()", "'a'.join(x)", "x.count('a')",
    "strftime_now('%999999999Y')", "strftime_now(x)", "raise_exception(x)", "x.items() | string",
]  # fmt: skip
PROGRAMS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "macro": "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "macros": "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}"
    "{{ m(60) }}",
    "recursive": "{% for m in messages recursive %}{{ loop([m]) }}{% endfor %}",
    "block": "{% set n = namespace(s='aaaa') %}{% for i in range(60) %}"
    "{% set t %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = t %}{% endfor %}{{ n.s }}",
    "block into a namespace": "{% set n = namespace(s='aaaa') %}{% for i in range(60) %}"
    "{% set n.s %}{{ n.s }}{{ n.s }}{% endset %}{% endfor %}{{ n.s }}",
    "filter block": "{% filter replace('a', 'b' * 9999) %}{{ 'a' * 9999 }}{% endfilter %}",
    "call block": "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call m() %}" * 40 + "a" + "{% endcall %}" * 40,
    "namespaces": grown("namespace(a=1)", "namespace(a=n.s, b=n.s)") + "{{ n.s }}",
    "a circle": "{% set n = namespace(s=1) %}{% set n.s = n %}{{ n }}",
    "a circle in a list": "{% set n = namespace(s=1) %}{% set n.s = [n] %}{{ n.s }}",
    "many lists": "{% set n = namespace(s=[]) %}{% for i in range(99999) %}"
    "{% set n.s = n.s + [[i] * 9999] %}{% endfor %}",
    "many texts": "{% set n = namespace(s=[]) %}{% for i in range(99999) %}"
    "{% set n.s = n.s + ['a' * 9999 ~ i] %}{% endfor %}",
    "a shadow": "{% set counted = 5 %}{% set made = 5 %}"
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "constants": "{{ " + " ~ ".join(["'" + "a" * 900 + "' * 9999"] * 20) + " }}",
    "constant lists": "{{ [[[1] * 9999] * 9999] * 9999 }}",
    "nested source": "{{ " + "[" * 900 + "]" * 900 + " }}",
    "long source": "{{ 1 }}" * 20000,
    "output": "{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}",
    "sorted lists": "{% set a = range(99999) | list %}{% for i in range(9999) %}"
    "{% set b = a | sort(reverse=true) %}{% endfor %}",
    "compared texts": "{% set a = 'a' * 9999 * 400 %}{% for i in range(99999) %}"
    "{% if a[1:] == a[:-1] %}{% endif %}{% endfor %}",
    "searched texts": "{% set a = 'a' * 9999 * 400 %}{% for i in range(99999) %}"
    "{% if 'aab' in a %}{% endif %}{% endfor %}",
    "expressions": "{{ 'a' * 40000 | striptags | urlize | title }}",
    "python": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ cycler.__init__.__globals__.os.system('id') }}",
    "attr": "{{ '' | attr('__class__') }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}{{ os }}",
}  # fmt: skip


def attacks() -> Iterator[tuple[str, str]]:
    """Names and templates."""
    yield from PROGRAMS.items()
    for (name, first), rest in itertools.product(BIG.items(), [*FILTERS, *EXPRESSIONS]):
        expression = rest if rest in EXPRESSIONS else f"x | {rest}"
        yield f"{name}: {expression}", first + "{{ " + expression + " }}"
