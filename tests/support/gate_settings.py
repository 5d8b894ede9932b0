"""Section ``gate`` of a short run."""

from __future__ import annotations

from typing import Any

SHORT_GATE: dict[str, Any] = {
    # What is asked here does not depend on how busy the machine is.
    "client_lag_p99_seconds": 30.0,
    "load": {
        "stages_qps": [10, 20],
        "stage_seconds": 4,
        "drain_seconds": 20,
        "warm_up_requests": 2,
        "warm_up_seconds": 0.5,
        "mix": [{"name": "short", "prompt_tokens": 40, "max_tokens": 4}],
    },
    "knee": {"enabled": False},
    "baseline": {"runs": 1},
    "objectives": [{"failed_ratio": 0.3}],
}
