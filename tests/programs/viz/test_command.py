"""`aster viz`: scripts recorded, runs listed, shown and compared, as text and as JSON."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from pathlib import Path

import pytest

from aster_ml import Tensor, cli
from aster_ml.viz import serve
from aster_ml.viz.page import data_of, page_of
from aster_ml.viz.serve import make_server
from aster_ml.viz.session import recorded, write
from tests.programs.viz.runs import record_net


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "net.json"
    path.write_text(json.dumps(record_net()), encoding="utf-8")
    return path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `aster viz` prints."""
    assert cli.main(["viz", *map(str, words)]) == 0
    return capsys.readouterr().out


def test_ls_names_requests_and_kernels(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "ls", str(run_file))
    data = json.loads(run_file.read_text())
    for kernel in data["kernels"]:
        assert kernel["name"] in text
    assert "runs.py:" in text
    assert json.loads(said(capsys, "ls", "--json", str(run_file))) == data


def test_show_has_every_view(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = json.loads(run_file.read_text())["kernels"][0]
    text = said(capsys, "show", str(run_file), kernel["name"])
    for view in ("passes", "why", "graph", "linear", "source", "asm", "accesses"):
        assert f"--- {view}" in text
    assert f"opt {kernel['parts'][0]['opts'][0]}" in text
    assert "define void @" in text
    assert "inside: " in text
    assert said(capsys, "show", str(run_file), "0", "why").count("---") == 1
    assert json.loads(said(capsys, "show", "--json", str(run_file), "0")) == kernel


def test_diff_names_changed_kernels_first(
    run_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = json.loads(run_file.read_text())
    other["kernels"][-1]["parts"][0]["opts"] = ["UPCAST(0,2)"]
    path = tmp_path / "other.json"
    path.write_text(json.dumps(other))
    lines = said(capsys, "diff", str(run_file), str(path)).splitlines()
    assert lines[0] == f"1 of {len(other['kernels'])} kernels differ"
    assert lines[1].startswith("changed")
    assert other["kernels"][-1]["name"] in lines[1]
    assert "(Opts)" in lines[1]
    rows = json.loads(said(capsys, "diff", "--json", str(run_file), str(path)))
    assert [r["state"] for r in rows] == ["changed"] + ["same"] * (len(rows) - 1)


def test_pages_read_back(run_file: Path, tmp_path: Path) -> None:
    data = json.loads(run_file.read_text())
    assert data_of(page_of(data)) == data


@pytest.mark.parametrize(
    "words, message",
    [
        (["ls", "none.html"], "cannot be read"),
        (["ls", "{text}"], "no recorded run"),
        (["ls", "{old}"], "record it again"),
        (["show", "{run}", "no_such_kernel"], "no kernel is called 'no_such_kernel'"),
        (["show", "{run}", "0", "colours"], "no view is called 'colours'"),
        (["diff", "{run}"], "1 words are given"),
        (["none.py"], "is no file"),
    ],
)
def test_what_is_wrong_is_said(
    words: list[str], message: str, run_file: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    text, old = tmp_path / "text.html", tmp_path / "old.json"
    text.write_text("<p>nothing</p>")
    old.write_text('{"format": "aster-viz", "version": 0}')
    given = [w.format(text=text, old=old, run=run_file) for w in words]
    assert cli.main(["viz", *given]) == 2
    assert message in capsys.readouterr().err


def test_a_script_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "some.py"
    text = "print((Tensor.ones(3).contiguous() + 1).tolist())\nsys.exit(3)\n"
    script.write_text(f"import sys\nfrom aster_ml import Tensor\n{text}")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["viz", "--json", str(script)]) == 3
    data = json.loads((tmp_path / "viz-some.json").read_text())
    assert data["kernels"]


def test_names_do_not_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = record_net()
    data["made"]["script"] = "\x1b[31mred\x07.py"
    path = tmp_path / "red.json"
    path.write_text(json.dumps(data))
    text = said(capsys, "ls", str(path))
    assert "\x1b" not in text
    assert "\\x1b[31mred\\x07.py" in text


def test_data_alone_goes_to_json(tmp_path: Path) -> None:
    with recorded() as recorder:
        Tensor.ones(4).contiguous().realize()
    assert json.loads(write(recorder, tmp_path / "a.json").read_text())["format"] == "aster-viz"
    assert "<!doctype html>" in write(recorder, tmp_path / "a.html").read_text()


def test_a_served_page_is_for_this_machine_alone() -> None:
    """Names of others that lead here, and pages of others, get nothing; silent ones are left."""
    server = make_server(0, lambda: {"secret": 1})
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    port = server.server_address[1]

    def ask(**headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/data", headers=headers)
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found

    try:
        most = range(serve.MOST_CONNECTIONS)
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in most]
        extra = socket.create_connection(("127.0.0.1", port), timeout=20)
        assert extra.recv(1) == b"", "more than there may be"
        for s in [*silent, extra]:
            s.close()
        for _ in range(100):
            with contextlib.suppress(OSError, http.client.HTTPException):
                if ask() == (200, b'{"secret": 1}'):
                    break
            time.sleep(0.1)
        assert ask(Host=f"localhost:{port}")[0] == 200
        for headers in (
            {"Host": "evil.example"},
            {"Host": f"evil.example:{port}", "Origin": f"http://evil.example:{port}"},
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
        ):
            status, said = ask(**headers)
            assert status == 403
            assert b"secret" not in said
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
