"""Programs that a command runs: they end with it."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from aster_ml import processes
from aster_ml.processes import run_python, run_quietly

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
SOURCES = str(pathlib.Path(processes.__file__).parents[1])
ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCES}
# Says its number and waits; the second does not listen to SIGTERM.
WAITS = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAITS
CALLS = {
    "in place": "run_python(['-c', {0!r}], in_place=True)",
    "beside": "run_python(['-c', {0!r}])",
}


def is_alive(number: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    state = pathlib.Path(f"/proc/{number}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("in place", "SIGTERM"),
        ("in place", "SIGHUP"),
        ("in place", "SIGINT"),
        # Beside another one a terminal sends Ctrl-C to both.
        ("beside", "SIGTERM"),
        ("beside", "SIGHUP"),
    ],
)
def test_a_signal_ends_both(call: str, name: str) -> None:
    # Under nohup a hang-up is ignored, and processes inherit that.
    program = (
        f"import signal; signal.signal(signal.{name}, signal.SIG_DFL)\n"
        f"from aster_ml.processes import run_python; {CALLS[call].format(WAITS)}"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        number = int(process.stdout.readline())
        assert (number == process.pid) == (call == "in place")
        process.send_signal(getattr(signal, name))
        assert process.wait(5) != 0
    assert not is_alive(number)


def test_a_program_that_does_not_listen_is_ended() -> None:
    program = (
        "from aster_ml import processes; processes.END_SECONDS = 0.5; "
        f"processes.run_python(['-c', {DEAF!r}])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        number = int(process.stdout.readline())
        time.sleep(0.1)
        process.terminate()
        assert process.wait(5) == -signal.SIGTERM
    assert not is_alive(number)


def test_what_a_program_says_and_its_code() -> None:
    done = run_quietly(["-c", "import sys; print('é', end=''); sys.exit('no')"])
    assert (done.returncode, done.stdout, done.stderr) == (1, "é", "no\n")
    assert run_python(["-c", "import sys; sys.exit(7)"]) == 7


def test_an_interrupt_ends_what_runs() -> None:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            run_quietly(["-c", "import time; time.sleep(60)"])
        assert time.monotonic() - begin < 30
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
