"""The reference curves G1 to G4, as the gate measures them, within 10 %; and what cannot hold together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gate.diagnosis import curves
from tests.gate.diagnosis.curves import PICTURE, held, kv_read, latency_p99, wait_for_long

TEN_PERCENT = 0.10


def test_g1_tokens_per_second_at_batch_8_are_3_2_times_those_at_batch_1() -> None:
    assert held(8).tokens_per_second / held(1).tokens_per_second == pytest.approx(3.2, rel=TEN_PERCENT)


def test_g1_p99_rises_by_47_percent_where_2_2_decode_times_lie_outside_the_batch() -> None:
    assert latency_p99(8) / latency_p99(1) == pytest.approx(1.47, rel=TEN_PERCENT)
    # The rise itself, not only the ratio
    assert latency_p99(8) / latency_p99(1) - 1 == pytest.approx(0.47, rel=TEN_PERCENT)


def test_g1_both_figures_exclude_each_other_where_all_time_is_in_the_engine() -> None:
    assert latency_p99(8, 0.0) / latency_p99(1, 0.0) == pytest.approx(8 / 3.2, rel=TEN_PERCENT)


@pytest.mark.parametrize("batch", [12, 16, 24])
def test_g2_each_request_beyond_8_adds_15_percent_to_kv_reading(batch: int) -> None:
    assert kv_read(batch) / kv_read(8) == pytest.approx(1 + 0.15 * (batch - 8), rel=TEN_PERCENT)


def test_g3_efficiency_peaks_at_batch_4_and_throughput_does_not() -> None:
    efficiency = {batch: held(batch).efficiency for batch in (1, 2, 4, 8, 16)}
    assert max(efficiency, key=lambda batch: efficiency[batch]) == 4
    assert efficiency[4] >= 0.9
    assert held(8).tokens_per_second > 1.2 * held(4).tokens_per_second


def test_g4_a_32k_prompt_stops_others_for_800_ms_and_chunks_bound_that() -> None:
    whole, chunks = wait_for_long(None), wait_for_long(256)
    assert whole[0] == pytest.approx(0.8, rel=TEN_PERCENT)
    assert chunks[0] < 0.05
    # Not both: the long prompt pays for it
    assert whole[1] == pytest.approx(0.8, rel=TEN_PERCENT)
    assert chunks[1] > 3 * whole[1]


def test_the_picture_is_that_of_these_curves(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="install sre[gate] for plots")
    curves.draw(tmp_path / "new.svg")
    new = (tmp_path / "new.svg").read_text()
    for title in ("Tokens/s over batch 1", "P99 over batch 1", "KV read over batch 8", "Compute efficiency"):
        assert title in new
        assert title in PICTURE.read_text()
