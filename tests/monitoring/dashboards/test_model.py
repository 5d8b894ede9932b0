"""What cannot be made: slips that would show as an empty panel, or as a wrong one."""

from __future__ import annotations

import pytest

from sre.metrics.types import Unit
from sre.monitoring.dashboards.layout import Place
from sre.monitoring.dashboards.model import Annotation, Dashboard, Kind, Panel, Query, Row, Shown
from sre.monitoring.dashboards.sources import sources
from sre.monitoring.promql import Expr, ExpressionError
from sre.settings.monitoring import MonitoringSettings

RATIO = Expr("gpu:utilization:ratio", Unit.RATIO, frozenset({"node"}), frozenset({"gpu:utilization:ratio"}))


def panel(key: str = "one", shown: Shown = Shown.RATIO, kind: Kind = Kind.LINES, **more: object) -> Panel:
    query = Query(RATIO, "{{node}}")
    return Panel(key, "One", kind, shown, (query,), "About.", "Bad.", **more)  # type: ignore[arg-type]


def test_a_record_that_nobody_makes_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ExpressionError, match="no record gpu:utilisation:ratio; near: gpu:utilization:ratio"):
        sources(MonitoringSettings()).record("gpu:utilisation:ratio")


def test_a_record_that_these_settings_leave_out_is_no_slip() -> None:
    assert not sources(MonitoringSettings()).has("slo:period_error_budget_remaining:ratio")


def test_a_legend_names_only_labels_that_are_there() -> None:
    with pytest.raises(ExpressionError, match=r"has no label gpu; it has node"):
        Query(RATIO, "{{gpu}}")


def test_a_unit_that_lies_is_refused() -> None:
    with pytest.raises(ExpressionError, match="is in ratio, which s does not show"):
        panel(shown=Shown.SECONDS)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"key": "One"}, "not written like"),
        ({"empty": ""}, "are all needed"),
        ({"width": 25}, "does not fit into 24 columns"),
        ({"kind": Kind.STATES}, "states belong to"),
        ({"kind": Kind.TABLE}, "has columns"),
        ({"kind": Kind.HEATMAP}, "needs buckets"),
    ],
)
def test_a_panel_that_cannot_be_drawn_is_refused(more: dict[str, object], words: str) -> None:
    with pytest.raises(ExpressionError, match=words):
        panel(**more)  # type: ignore[arg-type]


def test_a_uid_that_grafana_refuses_is_refused() -> None:
    with pytest.raises(ExpressionError, match="40 characters at the most"):
        Dashboard("x" * 41, "Title", "About.", (), ())


def test_two_panels_with_one_key_are_refused() -> None:
    with pytest.raises(ExpressionError, match="get one id"):
        Dashboard("x", "Title", "About.", (Row("", (panel(), panel())),), ())


def test_an_event_names_only_labels_that_are_there() -> None:
    with pytest.raises(ExpressionError, match="has no label pool"):
        Annotation("Events", RATIO, "{{pool}}", "", "red")


def test_places_overlap_where_they_share_a_cell() -> None:
    assert Place(0, 0, 8, 8).overlaps(Place(7, 7, 8, 8))
    assert not Place(0, 0, 8, 8).overlaps(Place(8, 0, 8, 8))
