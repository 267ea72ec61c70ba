"""temporary"""

from __future__ import annotations

import os
from typing import Any

from ..errors import require


def connect(address: str | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray: Any = require("ray", "ray")
    if not ray.is_initialized():
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level="ERROR",
            include_dashboard=None if address not in (None, "local") else False,
        )
