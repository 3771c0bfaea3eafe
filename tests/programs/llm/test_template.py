"""Chat templates: what they render, and what they are not let do."""

from __future__ import annotations

import datetime
import os
import pathlib
import signal
import sys
import threading
from typing import Any

import pytest

pytest.importorskip("jinja2")

from aster_ml.apps.llm import limits
from aster_ml.apps.llm.template import MAX_TEMPLATE, SANDBOX, ChatTemplate
from aster_ml.errors import ArgumentError, FormatError

HELLO = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi <b>"}]


def test_the_form_without_a_template() -> None:
    assert ChatTemplate().render(HELLO) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi <b><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert ChatTemplate().render(HELLO, prompt=False).endswith("Hi <b><|im_end|>\n")


def test_what_templates_of_models_use() -> None:
    source = """{%- set ns = namespace(n=0) -%}
{%- for m in messages if m.role != 'system' -%}
{%- set ns.n = ns.n + loop.index -%}
{{ bos_token }}[{{ m['role'] | upper }}] {{ m.content.strip() ~ '!' }}
{%- if loop.last %} {{ tools | tojson }}{% endif -%}
{%- if loop.first %}{% continue %}{% endif -%}
{%- endfor -%} {{ ns.n }} {{ strftime_now('%Y') }} {{ 'x' * 3 }} {{ messages[1:] | length }}
{%- macro twice(x) -%}{{ x }}{{ x }}{%- endmacro -%} {{ twice(custom | default('no')) }}"""
    tools = [{"type": "function", "function": {"name": "f", "description": "<&>"}}]
    got = ChatTemplate(source, {"bos_token": "<s>"}).render(HELLO, tools=tools, custom="yes")
    year = datetime.datetime.now().year
    want = (
        '<s>[USER] Hi <b>! [{"type": "function", "function": {"name": "f", "description": "<&>"}}]'
        f"1 {year} xxx 1yesyes"
    )
    assert got == want


TWICE = "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"


def grow(first: str, then: str) -> str:
    """A template that makes a value from itself, again and again."""
    many = "{% for i in range(60) %}{% set n.s = " + then + " %}{% endfor %}"
    return "{% set n = namespace(s=" + first + ") %}" + many


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "steps"),
        ("{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}", "Recursion|steps"),
        (TWICE + "{{ m(60) }}", "steps"),
        ("{% for m in messages recursive %}{{ loop([m]) }}{% endfor %}", "Recursion|steps"),
        ("{{ range(10**9) | list | length }}", "(?i)range"),
        (grow("'aaaa'", "n.s ~ n.s"), "parts"),
        (grow("[1]", "n.s + n.s"), "parts"),
        ("{{ 'a' * 10**9 }}", "parts"),
        ("{{ 9**9**9 }}", "power"),
        (grow("7", "n.s * n.s"), "bits"),
        ("{{ '%1000000000d' % 1 }}", "formats"),
        ("{{ 'a' | center(10**9) }}", "more than"),
        ("{{ '{:>1000000000}'.format(1) }}", "unsafe|Security"),
        ("{{ 'a'.ljust(10**9) }}", "more than"),
        ("{{ ('a' * 9999).replace('a', 'b' * 9999).replace('b', 'c' * 9999) }}", "too large|parts"),
        ("{{ messages | tojson(indent=10**9) }}", "indent"),
        ("{{ ''.__class__.__mro__ }}", "__class__"),
        ("{{ cycler.__init__.__globals__.os }}", "__init__"),
        ("{{ messages.append({'role': 'system'}) }}", "append"),
        ("{{ raise_exception('only users') }}", "only users"),
        ("{{ undefined_name.attribute }}", "undefined"),
        ("{% include 'other' %}", "loader"),
        ("{{ 1 / 0 }}", "ZeroDivision"),
    ],
)  # fmt: skip
def test_what_a_template_may_not_do(source: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        ChatTemplate(source).render(HELLO)


@pytest.mark.parametrize(
    "source", ["{% if x", "{{ | }}", "{% for %}", "x" * (MAX_TEMPLATE + 1), "{{ " + "(" * 5000]
)
def test_what_is_no_template_is_refused(source: str) -> None:
    with pytest.raises(FormatError, match="chat template"):
        ChatTemplate(source)


def test_a_filter_that_formats_is_not_there() -> None:
    with pytest.raises(FormatError, match="format"):
        ChatTemplate("{{ '%1000000000d' | format(1) }}")


def test_messages_stay_as_they_are() -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
    template = ChatTemplate("{% set x = messages[0].update({'role': 'system'}) %}")
    with pytest.raises(ArgumentError, match="update"):
        template.render(messages)
    assert messages == [{"role": "user", "content": "Hi"}]


def test_chats_share_a_process() -> None:
    """Also several at once, of several templates; each gets its own text."""
    first, second = ChatTemplate(), ChatTemplate("{{ messages[0].content }}")
    first.render(HELLO)
    assert SANDBOX.process is not None
    number = SANDBOX.process.pid
    found: dict[int, str] = {}

    def ask(i: int) -> None:
        found[i] = second.render([{"role": "user", "content": str(i)}])

    threads = [threading.Thread(target=ask, args=[i]) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: str(i) for i in range(8)}
    assert first.render(HELLO).endswith("assistant\n")
    assert SANDBOX.process.pid == number


@pytest.mark.skipif(not hasattr(os, "fork"), reason="signals and limits as POSIX has them")
def test_a_process_that_ends_is_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate()
    text = template.render(HELLO)
    assert SANDBOX.process is not None
    SANDBOX.process.kill()
    SANDBOX.process.wait()
    assert template.render(HELLO) == text
    monkeypatch.setattr(limits, "WALL_SECONDS", 0.3)
    os.kill(SANDBOX.process.pid, signal.SIGSTOP)
    with pytest.raises(ArgumentError, match=r"longer than 0.3 s"):
        template.render(HELLO)
    monkeypatch.setattr(limits, "WALL_SECONDS", 60.0)
    assert template.render(HELLO) == text


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of address space is Linux's")
@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("bytearray(1 << 30)", "256 MiB of memory"),
        ("sum(iter(int, 1))", "2 s of processor time"),
        ("__import__('os')._exit(3)", "ends the process"),
        ("functools.reduce(lambda a, _: [a], range(99999), [])", "nested too deep"),
    ],
)
def test_limits_of_the_process(
    question: str, said: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold for whatever runs in it."""
    program = pathlib.Path(limits.PROGRAM).read_text(encoding="utf-8")
    (tmp_path / "confined.py").write_text(program, encoding="utf-8")
    job = f"import functools\ndef answer(question):\n    return {{'value': {question}}}\n"
    (tmp_path / "job.py").write_text(job, encoding="utf-8")
    monkeypatch.setattr(limits, "PROGRAM", tmp_path / "confined.py")
    with pytest.raises(limits.LimitError, match=said):
        limits.Confined("job").ask({})
