"""What a file of another tool does not show must not look as if it were fine."""

from __future__ import annotations

from typing import Any

import pytest

from sre.gate.fingerprint import differences
from sre.gate.importers import fingerprint, imported, unseen
from sre.gate.records import Cause
from tests.gate.importers.test_importers import AIPERF, GUIDELLM, causes, guidellm, records, vllm


def test_what_the_end_of_a_guidellm_run_cut_off_does_not_take_the_slow_ones_out_of_the_percentiles() -> None:
    """
    40 requests, one every 50 ms; the longest answer took 1.48 s. The run ends while the first and the last have no
    answer: the first had time enough and failed, of the end of the schedule nothing is known.
    """

    def ends(document: dict[str, Any]) -> None:
        requests = document["benchmarks"][0]["requests"]
        by_time = sorted(requests["successful"], key=lambda request: request["info"]["timings"]["targeted_start"])
        end = max(request["info"]["timings"]["resolve_end"] for request in by_time) + 0.01
        for request in (by_time[0], by_time[-1]):
            requests["successful"].remove(request)
            times = request["info"]["timings"]
            requests["incomplete"].append(request)
            times |= {"request_end": None, "resolve_end": end, "first_token_iteration": None}

    found = imported(guidellm(ends))
    kept = records(found)
    assert causes(found)["timeout"] == 1
    assert "cancelled" not in causes(found)
    assert (kept[0].cause, kept[0].intended_at) == (Cause.TIMEOUT, 0.0)
    longest = max(record.e2e_seconds for record in kept if record.cause is Cause.OK)
    assert longest == pytest.approx(1.48, abs=0.01)
    assert len(kept) == 30  # due 1.48 s and more before the end, which came 2.95 s after the first
    assert any("1 requests had no answer at its end" in note for note in found.notes)
    assert any("are left out: some of them were cut off" in note for note in found.notes)
    assert all(check.ok for check in found.stages[0].checks)


def test_other_prompts_or_another_way_of_loading_are_not_compared() -> None:
    def longer(document: dict[str, Any]) -> None:
        document["input_lens"] = [10 * count for count in document["input_lens"]]

    here = fingerprint([imported(vllm())])
    names = [one.name for one in differences(here, fingerprint([imported(vllm(longer, max_concurrency=4))]))]
    assert names == ["max_concurrency", "prompt_tokens"]


def test_what_a_format_hides_is_said_in_a_few_words() -> None:
    assert unseen([imported(vllm()), imported(vllm())]) == (
        "vllm bench records neither its own lateness nor errors inside a stream"
    )
    assert unseen([imported(AIPERF), imported(GUIDELLM)]) == ""
