"""What is taken for an operand: a mistake here would hide an alert that can never fire."""

from __future__ import annotations

import promql_parser
import pytest

from sre.monitoring.catalogue_rules import all_alerts
from sre.settings.monitoring import MonitoringSettings
from tests.monitoring.live.operands import names, operands


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("a > 1", ["a"]),
        ("a > 1 and on (x) b < 2 unless c", ["a", "b", "c"]),
        ("(a > 1 or b == 0) and c", ["a", "b", "c"]),
        ("a / (b > 0) > 0.5", ["a / (b > 0)"]),
        ("a < b", ["a", "b"]),
        ("absent(up) or a == 0", ["a"]),
        ('label_replace(a > 1 and b > 2, "x", "$1", "y", "(.*)")', ["a", "b"]),
        ("sum by (x) (a > 1)", ["a"]),
        (
            "increase(a[5m]) > 0 and changes(b:c:d[5m] offset 1m) > 0",
            ["increase(a[5m])", "changes(b:c:d[5m] offset 1m)"],
        ),
        ("absent_over_time(a[15m]) and on () up == 1", ["up"]),
    ],
)
def test_operands(condition: str, expected: list[str]) -> None:
    assert [" ".join(operand.split()) for operand in operands(condition)] == expected


def test_every_alert_has_operands_that_parse_and_reads_what_it_says() -> None:
    alerts = all_alerts(MonitoringSettings())
    for alert in alerts:
        assert names(alert.expr.text) == alert.uses
        for operand in operands(alert.expr.text):
            promql_parser.parse(operand)
    without = {alert.name for alert in alerts if not operands(alert.expr.text)}
    assert without == {"VllmTargetAbsent"}, "nothing but absence"
