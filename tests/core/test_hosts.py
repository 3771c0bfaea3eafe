"""Who may ask a server of this machine, by the headers of a request."""

from __future__ import annotations

import random
from typing import Any

import pytest

from aster_ml.hosts import is_loopback, why_refused
from tests.fuzz.budget import check_all, draws

OWN = ["localhost", "LOCALHOST", "127.0.0.1", "127.8.9.10", "[::1]", "me.localhost", "localhost."]
OTHERS = [
    "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "192.168.1.5", "0.0.0.0",
    "[2001:db8::1]", "[::2]", "evil.example#localhost", "", "127.0.0.1@evil.example",
    "[::1].evil.example", "localhost:80:evil.example", "2130706433", "::1.evil", "localhost/",
]  # fmt: skip


def test_hosts_and_origins(record_property: Any) -> None:
    def check(seed: int) -> str | None:
        rng = random.Random(seed)
        is_own = rng.random() < 0.5
        name = rng.choice(OWN if is_own else OTHERS)
        host = name + rng.choice(["", ":8000", ":1"])
        page = rng.choice([None, host, "evil.example", "localhost:9", "null", "my.page"])
        origin = page if page in (None, "null") else f"{rng.choice(['http', 'https'])}://{page}"
        allowed = rng.choice([(), ("evil.example",), ("*",)])
        trusted = rng.choice([(), ("https://my.page",), ("*",)])
        host_is_fine = is_own or "*" in allowed or (name == "evil.example" and bool(allowed))
        page_is_fine = (
            origin is None or "*" in trusted or origin in trusted or (page == host and bool(host))
        )
        said = why_refused(host, origin, allowed, trusted)
        if (said is None) == (host_is_fine and page_is_fine):
            return None
        return f"Host {host!r}, Origin {origin!r}, {allowed}, {trusted}: {said}"

    check_all("hosts and origins", draws(2000, 50_000), check, record_property)


@pytest.mark.parametrize("host", [None, ""])
def test_a_request_without_a_host_is_refused(host: str | None) -> None:
    assert why_refused(host, None, ()) is not None


def test_addresses_of_this_machine() -> None:
    assert all(is_loopback(a) for a in ("localhost", "127.0.0.1", "::1", "127.255.0.1"))
    assert not any(is_loopback(a) for a in ("0.0.0.0", "::", "", "10.0.0.1", "local", "host"))
