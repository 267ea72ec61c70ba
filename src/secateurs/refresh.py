"""Seeing what others have written, not more often than each second."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from .errors import SecateursError

SECONDS = 1.0


class ThrottledRefresh:
    """A call that reads the newest state of something on disk. If that fails, the earlier state stays in use.

    The failure is in `problem` until a later call succeeds, and is logged once, not each second.
    """

    def __init__(self, name: object, refresh: Callable[[], object], log: logging.Logger) -> None:
        self._name, self._refresh, self._log = name, refresh, log
        self._last = time.monotonic()
        self.problem: str | None = None

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._last > SECONDS

    def run(self) -> None:
        """Refresh now."""
        self._last = time.monotonic()
        try:
            self._refresh()
            self.problem = None
        except (SecateursError, OSError) as error:
            if self.problem is None:
                self._log.warning(
                    "%s: what was written since cannot be read, so the earlier state stays in use (%s)",
                    self._name,
                    error,
                )
            self.problem = str(error)
