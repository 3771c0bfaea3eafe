"""Reports errors of commands as one line on the error output, with an exit code."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec

from aster_ml.errors import AsterError

P = ParamSpec("P")


def reports_errors(
    name: str, *more: type[Exception], interrupted: int | None = None
) -> Callable[[Callable[P, int]], Callable[P, int]]:
    """A decorator: the command prints an error of Aster or the system and returns 1.

    `more` are further errors that are printed; `interrupted` is the exit code of Ctrl-C.
    """
    errors: tuple[type[Exception], ...] = (AsterError, OSError, *more)

    def decorate(main: Callable[P, int]) -> Callable[P, int]:
        @functools.wraps(main)
        def reporting(*args: P.args, **kwargs: P.kwargs) -> int:
            try:
                return main(*args, **kwargs)
            except errors as error:
                print(f"{name}: {error}", file=sys.stderr)
                return 1
            except KeyboardInterrupt:
                if interrupted is None:
                    raise
                print(file=sys.stderr)
                return interrupted

        return reporting

    return decorate
