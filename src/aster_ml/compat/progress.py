"""Shows progress bars for loops, as tinygrad's helpers do; tqdm draws them.

Receives iterables; yields what these do. The constructor takes arguments in tinygrad's order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tqdm import tqdm as drawn_bar


class tqdm(drawn_bar):  # type: ignore[misc]
    """A progress bar around an iterable; `rate` is how often a second it is drawn at most.

    What else tqdm takes (`leave`, `ncols`, ...) is given by name.
    """

    def __init__(
        self,
        iterable: Iterable[Any] | None = None,
        desc: str = "",
        disable: bool = False,
        unit: str = "it",
        unit_scale: Any = False,
        total: int | None = None,
        rate: int = 100,
        **options: Any,
    ) -> None:
        options.setdefault("mininterval", 1 / rate)
        super().__init__(
            iterable,
            desc=desc or None,
            total=total,
            unit=unit,
            unit_scale=unit_scale,
            disable=disable,
            **options,
        )

    def update(self, n: float = 1, close: bool = False) -> Any:
        """Counts `n` more; with `close` the bar is finished."""
        drawn = super().update(n)
        if close:
            self.close()
        return drawn


def trange(n: int, **kwargs: Any) -> tqdm:
    """A progress bar over `range(n)`."""
    return tqdm(range(n), total=n, **kwargs)
