"""Uses each kind of entry of the cache in a process that may take so much memory and time.

`python -m tests.fuzz.cache_worker`: reads the name of a cache folder a line, uses it in a forked
process, and answers with a line: "right COMPILED WARM", how many kernels were compiled and what was
found kept, or what went wrong.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import traceback
import warnings

import numpy as np

from aster_ml import Context, GlobalCounters, Tensor
from aster_ml.compat.disk_cache import diskcache_get, diskcache_put
from aster_ml.config import THREADS
from aster_ml.device import Device
from aster_ml.engine import fallback
from aster_ml.engine.caches import CACHES
from aster_ml.engine.compile import compile_kernel
from aster_ml.engine.search import beam as search
from tests.core.kernel_checks import kernel_of, memory

# Of one use; what is not damaged takes a tenth of a second and 200 MB more than there were.
CPU_S, MORE_BYTES = 20, 2 << 30
RIGHT = "right"


def use(folder: str) -> str:
    """Computes with what a cache folder has; says what was found there, or was wrong."""
    with Context(CACHEDIR=folder, CACHE=1):
        x = Tensor(np.arange(64 * 65, dtype=np.float32).reshape(64, 65) / 4161).realize()
        y = x.numpy().astype(np.float64)
        GlobalCounters.reset()
        before = GlobalCounters.compiled_kernels
        got = (x @ x.T).softmax().numpy()
        terms = np.exp(y @ y.T - (y @ y.T).max(-1, keepdims=True))
        if not np.allclose(got, terms / terms.sum(-1, keepdims=True), rtol=1e-4):
            return "the numbers are wrong"
        sums = [((x * i).sum(i % 2) + i).contiguous() for i in range(1, 4)]
        Tensor.realize(*sums)
        for i, found in enumerate(sums, 1):
            if not np.allclose(found.numpy(), (y * i).sum(i % 2) + i, rtol=1e-4):
                return "the sums are wrong"
        compiled = GlobalCounters.compiled_kernels - before
        table = diskcache_get("table", {"a": 1, "b": "two"})
        if table not in (None, {"value": [1, 2, 3]}):
            return f"the table has {table!r:.80}"
        diskcache_put("table", {"a": 1, "b": "two"}, {"value": [1, 2, 3]})
        record = use_record()
        place = fallback.write("kernel-0.txt", fallback.HEAD)
        warm = f"{int(table is not None)}{int(record is not None)}{int(place is not None)}"
        return f"{RIGHT} {compiled} {warm}"


def use_record() -> search.Record | None:
    """What was kept of a search for a small kernel, by which it then runs."""
    x = memory(48, 80)
    ast, backend = kernel_of((x + 1).sum(0)), Device["CPU"]
    target = backend.target
    name = search.record_name(ast, target)
    record = search.look_up(name)
    if record is not None and search.may_be_taken(ast, target, record.opts):
        compile_kernel(ast, backend, record.opts)
    opts = tuple(search.schedule_kernel(ast, target).applied)
    found = search.Found(opts, 1.5, 2.5, 7)
    search.keep(name, search.Record(1, opts), search.record_text(ast, target, 1, found))
    return record


def limited(folder: str) -> None:
    """What `use` says of a folder, on standard output, within the limits."""
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MORE_BYTES, now + MORE_BYTES))
    spent = int(sum(os.times()[:2]))
    resource.setrlimit(resource.RLIMIT_CPU, (spent + CPU_S, spent + CPU_S))
    # What LLVM says of an object.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        said = use(folder)
    except BaseException:
        said = traceback.format_exc().replace("\n", " | ")[-600:]
    print(said, flush=True)
    os._exit(0)


def main() -> None:
    """Answers each line."""
    warnings.simplefilter("ignore")
    THREADS.set_for_all(1)
    Device["CPU"].prepare()
    for line in sys.stdin:
        CACHES.forget_schedules()
        number = os.fork()
        if number == 0:
            limited(line.rstrip("\n"))
        _, status = os.waitpid(number, 0)
        if os.WIFSIGNALED(status):
            print(f"ended by signal {os.WTERMSIG(status)}", flush=True)


if __name__ == "__main__":
    tempfile.tempdir = os.devnull
    main()
