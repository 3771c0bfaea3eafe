"""Rejects requests to a local server by their Host and Origin headers (DNS rebinding).

Receives the headers Host and Origin of a request; returns why it is refused, or None. A page of
another site can let its own name resolve to 127.0.0.1 and send requests from a user's browser; the
Host header still has that name.

Source: RFC 9110 and 6454 for the headers.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

EVERY = "*"
HOST = re.compile(r"(\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[a-z0-9_.-]+))(:[0-9]{1,5})?")


def is_loopback(host: str) -> bool:
    """Whether an address or a name is a loopback one."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def name_of(host: str) -> str:
    """The name or address in a Host header, without its port and brackets; "" for none."""
    found = HOST.fullmatch(host.strip().lower())
    return (found["address"] or found["name"]).removesuffix(".") if found else ""


def why_refused(
    host: str | None, origin: str | None, names: Collection[str], origins: Collection[str] = ()
) -> str | None:
    """Why a request is refused by its headers; None where it is not.

    `names` are the host names allowed beside loopback, "*" for any. A page may send requests to
    the server that it came from; so may pages of `origins` ("*" for any).
    """
    if EVERY not in names:
        name = name_of(host or "")
        if not is_loopback(name) and name not in names:
            return f"the Host {host!r} is not one by which this server may be asked"
    if origin is None or EVERY in origins or origin in origins:
        return None
    page = origin.partition("://")[2].lower()
    if page and page == (host or "").strip().lower():
        return None
    return f"pages of {origin!r} may not ask this server"
