"""The array API's own tests, run on `aster_ml.array_api`: `make array-api`.

The suite (data-apis/array-api-tests) is no package. Its clone is taken from ARRAY_API_TESTS, from
build/array-api-tests, or fetched there with git; without one a line says what is missing, and the
exit status is 3. It runs in a process of its own, in its folder, on the interpreter, which small
kernels are quickest on. What fails by intent is listed in `array_api_xfails.txt`, each with its
reason; at most 2% of the tests may be. Arguments are handed on to pytest.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parents[3]
XFAILS = Path(__file__).with_name("array_api_xfails.txt")
SOURCE = "https://github.com/data-apis/array-api-tests"
MISSING, VERSION = 3, "2024.12"


def suite() -> Path | None:
    """The folder of the suite; None where it is not to be had, which is said."""
    named = os.environ.get("ARRAY_API_TESTS")
    folder = Path(named) if named else HOME / "build" / "array-api-tests"
    if (folder / "array_api_tests").is_dir():
        return folder
    if named:
        print(f"array API: ARRAY_API_TESTS={named} has no folder array_api_tests; name a clone")
        return None
    if shutil.which("git") is None:
        print(f"array API: not run: no git to clone {SOURCE}; set ARRAY_API_TESTS to a clone")
        return None
    command = ["git", "clone", "--quiet", "--recurse-submodules", SOURCE, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["git failed"])[-1]
        print(f"array API: not run: {why}")
        print(f"array API: set ARRAY_API_TESTS to a clone of {SOURCE} with its submodules")
        return None
    return folder


def known_failures() -> list[str]:
    """The tests that fail by intent."""
    lines = XFAILS.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def counts(text: str) -> dict[str, int]:
    """What pytest's last line counts, by name."""
    last = ([""] + [x for x in text.splitlines() if re.search(r"\d+ (passed|failed|error)", x)])[-1]
    return {name: int(n) for n, name in re.findall(r"(\d+) ([a-z]+)", last)}


def main(arguments: list[str]) -> int:
    """Runs the suite, prints its figures; 0 where nothing fails unexplained."""
    folder = suite()
    if folder is None:
        return MISSING
    environment = {
        **os.environ,
        "ARRAY_API_TESTS_MODULE": "aster_ml.array_api",
        "ARRAY_API_TESTS_VERSION": VERSION,
        "DEV": "PYTHON",
        "PYTHONPATH": os.pathsep.join([str(HOME / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "array_api_tests/"]
    command += ["--xfails-file", str(XFAILS), *(arguments or ["--max-examples", "5"])]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    print(done.stdout)
    print(done.stderr, file=sys.stderr)
    found = counts(done.stdout)
    total = sum([found.get(k, 0) for k in ("passed", "failed", "xfailed", "xpassed", "skipped")])
    failed = found.get("failed", 0) + found.get("error", 0) + found.get("errors", 0)
    share = found.get("xfailed", 0) / max(total, 1)
    print(f"array API {VERSION}: {total} tests, {found.get('passed', 0)} pass, {failed} fail")
    print(
        f"array API {VERSION}: {found.get('xfailed', 0)} fail by intent, {share:.1%} (2% at most)"
    )
    return int(done.returncode != 0 or not total or failed > 0 or share > 0.02)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
