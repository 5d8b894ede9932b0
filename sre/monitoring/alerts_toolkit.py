"""
Alerts on the toolkit itself: breaker, guard, gateway, notifications, chaos.

They keep ``instance``, the guard they are about: ``SreGuardDown`` then inhibits what its own values would say.
"""

from __future__ import annotations

from functools import partial

from sre.metrics import own
from sre.metrics.prometheus import UP
from sre.metrics.types import Exporter, Metric
from sre.monitoring.levels import INSTANCE
from sre.monitoring.model import Alert, Dimension, Input, Missing, Rising, Scenario, Severity, Steady
from sre.monitoring.promql import Expr, Selection, absent_up, compare, either, max_by, min_by, seconds, sum_by
from sre.monitoring.records_engine import at_least_four_scrapes
from sre.monitoring.series import series, up
from sre.settings.monitoring import MonitoringSettings

WATCHDOG = "SreWatchdog"
CANARY = "SreCanary"
GUARD = "n1:9401"
"""The guard in scenarios."""

_sre = partial(Alert, component="sre", dashboard="sre-breaker")
_TARGET = "{{ $labels.scope }} {{ $labels.target }}"


def alerts(selection: Selection, settings: MonitoringSettings) -> list[Alert]:
    """Pages where traffic is refused or nobody watches it, tickets for the rest."""
    return [
        *_breaker(selection),
        *_guard(selection),
        *_readers(selection),
        *_notifications(selection),
        *_webhook(selection),
    ]


def _breaker(selection: Selection) -> list[Alert]:
    engine = {"scope": "engine", "target": "e1"}
    by_hand = 'state=~"forced_open|disabled"'
    return [
        _sre(
            "SreBreakerOpen",
            compare(max_by(selection.gauge(own.BREAKER_STATE, state="open"), INSTANCE, own.SCOPE, own.TARGET), "==", 1),
            for_="0s",
            severity=Severity.PAGE,
            dimension=Dimension.REQUEST,
            summary="The breaker of " + _TARGET + " is open.",
            description="The guard saw a fault and refuses new requests for " + _TARGET + "; running streams go on. "
            "It probes and lets traffic back by itself, unless it latched.",
            scenario=_state(
                selection, own.BREAKER_STATE, {"scope": "pool", "target": "m"}, "1m", hidden={"state": "open"}
            ),
        ),
        _sre(
            "SreBreakerOverridden",
            compare(
                max_by(selection.gauge(own.BREAKER_STATE, by_hand), INSTANCE, own.SCOPE, own.TARGET, own.STATE), "==", 1
            ),
            for_="1h",
            severity=Severity.TICKET,
            dimension=Dimension.REQUEST,
            summary="The breaker of " + _TARGET + " is {{ $labels.state }} by hand for more than an hour.",
            description="A person overrode the breaker of " + _TARGET + "; nothing automatic undoes that, so that a "
            "fault of it is not contained, or its traffic stays away.",
            scenario=_state(selection, own.BREAKER_STATE, engine | {"state": "disabled"}, "62m", interval="1m"),
        ),
        _sre(
            "SreRuleBlind",
            compare(max_by(selection.gauge(own.RULE_BLIND), INSTANCE, own.RULE, own.TARGET), "==", 1),
            for_="30s",
            severity=Severity.TICKET,
            dimension=Dimension.RESOURCE,
            summary="Rule {{ $labels.rule }} does not see {{ $labels.target }}.",
            description="The signal of rule {{ $labels.rule }} on {{ $labels.target }} is absent, stale or invalid: "
            "the rule cannot trip.",
            scenario=_state(selection, own.RULE_BLIND, {"rule": "gpu_temperature", "target": "e1/0"}, "2m"),
        ),
        _sre(
            "SreActionBudgetSpent",
            compare(
                min_by(selection.gauge(own.ACTION_BUDGET), INSTANCE, own.ACTION, own.SCOPE, own.TARGET), "<", 1
            ),
            for_="5m",
            severity=Severity.TICKET,
            dimension=Dimension.REQUEST,
            summary="No {{ $labels.action }} of " + _TARGET + " is left to the guard.",
            description="The guard used up what it may do of {{ $labels.action }} to " + _TARGET + ". The fault came "
            "back each time: find its cause; until then the guard only contains it.",
            scenario=_state(
                selection, own.ACTION_BUDGET, engine | {"action": "restart"}, "7m", firing=0, quiet=2
            ),
        ),
        _sre(
            "SreEngineRestarts",
            compare(
                sum_by(selection.increase(own.ENGINE_RESTARTS, "1h"), INSTANCE, own.ENGINE, own.POOL), ">=", 3
            ),
            for_="0s",
            severity=Severity.TICKET,
            dimension=Dimension.REQUEST,
            summary="Engine {{ $labels.engine }} was replaced {{ $value | printf \"%.0f\" }} times within an hour.",
            description="The process of {{ $labels.engine }} of pool {{ $labels.pool }} ends again and again, or is "
            "restarted: each time its requests are lost and its weights load anew.",
            scenario=Scenario(
                (
                    Input(
                        series(selection, own.ENGINE_RESTARTS, engine="e1", pool="m", instance=GUARD),
                        Rising(0.125), Rising(0), Missing(),
                    ),
                ),
                fires_after="1h", resolves_after="62m",
                labels={"engine": "e1", "pool": "m", "instance": GUARD}, value="8", interval="1m",
            ),
        ),
    ]  # fmt: skip


def _guard(selection: Selection) -> list[Alert]:
    job = selection.jobs.get(Exporter.SRE, Exporter.SRE.value)
    ticks = Input(series(selection, own.GUARD_TICKS, instance=GUARD), Rising(0), Rising(15), idle=Missing())
    window = at_least_four_scrapes(selection, 60)
    rejected = at_least_four_scrapes(selection, 600)
    rejected_minutes = seconds(rejected) / 60
    return [
        _sre(
            "SreGuardDown",
            either(compare(selection.gauge(UP, job=job), "==", 0), absent_up(job, selection.matchers)),
            for_="1m",
            severity=Severity.PAGE,
            dimension=Dimension.RESOURCE,
            summary="The guard{{ if $labels.instance }} {{ $labels.instance }}{{ end }} does not answer.",
            description="Traffic goes on as last decided, but no fault is seen, contained or reported by it. "
            "Prometheus cannot scrape it, or no longer knows it.",
            scenario=Scenario(
                (Input(up(selection, Exporter.SRE, instance=GUARD), Steady(0), Steady(1)),),
                fires_after="2m", resolves_after="1m",
                labels={"job": job, "instance": GUARD, **dict(selection.matchers)},
            ),
        ),
        _sre(
            "SreGuardStalled",
            compare(min_by(selection.increase(own.GUARD_TICKS, window), INSTANCE), "==", 0),
            for_="30s",
            severity=Severity.PAGE,
            dimension=Dimension.RESOURCE,
            summary="The guard {{ $labels.instance }} answers, but its loop stands still.",
            description=f"No turn of the control loop of {{{{ $labels.instance }}}} in the last {window}: no fault is "
            "seen, contained or reported.",
            scenario=Scenario(
                (ticks,), fires_after="8m", resolves_after="6m", labels={"instance": GUARD}
            ),
        ),
        _sre(
            "SreGuardErrors",
            compare(
                sum_by(selection.increase(own.GUARD_ERRORS, rejected), INSTANCE, own.BOUNDARY), ">=", 5
            ),
            for_="5m",
            severity=Severity.TICKET,
            dimension=Dimension.RESOURCE,
            summary="The guard fails at {{ $labels.boundary }} again and again.",
            description="{{ $value | printf \"%.0f\" }} failures at {{ $labels.boundary }} of {{ $labels.instance }} "
            f"within {rejected}; the loop goes on. Its log says which.",
            scenario=Scenario(
                (
                    Input(
                        series(selection, own.GUARD_ERRORS, boundary="gpu", instance=GUARD), Rising(1), Rising(0),
                        Missing(),
                    ),
                ),
                fires_after="40m", resolves_after="32m",
                labels={"boundary": "gpu", "instance": GUARD}, value=f"{rejected_minutes:.0f}", interval="1m",
            ),
        ),
        _sre(
            "SreGuardPaused",
            _one(selection, own.GUARD_PAUSED),
            for_="4h",
            severity=Severity.TICKET,
            dimension=Dimension.REQUEST,
            summary="A person holds the automation for more than four hours.",
            description="The guard {{ $labels.instance }} sees and reports, and does not act. Forgotten? "
            "sre guard status says who and why.",
            scenario=_state(selection, own.GUARD_PAUSED, {}, "242m", interval="1m"),
        ),
        _sre(
            "SreStateStoreDown",
            _zero(selection, own.STATE_STORE_UP),
            for_="30s",
            severity=Severity.PAGE,
            dimension=Dimension.RESOURCE,
            summary="The state of the guard {{ $labels.instance }} on disk cannot be trusted or written.",
            description="The guard {{ $labels.instance }} observes and does not act; traffic goes on. Usually its "
            "disk is full or hangs.",
            scenario=_state(selection, own.STATE_STORE_UP, {}, "2m", firing=0, quiet=1),
        ),
        _sre(
            "SreGatewayDown",
            _zero(selection, own.GATEWAY_UP),
            for_="30s",
            severity=Severity.PAGE,
            dimension=Dimension.REQUEST,
            summary="The admin socket of the gateway does not answer the guard {{ $labels.instance }}.",
            description="The guard {{ $labels.instance }} can neither see nor steer it; clients may be cut off.",
            scenario=_state(selection, own.GATEWAY_UP, {}, "2m", firing=0, quiet=1),
        ),
        _sre(
            "SreGatewayUpdateRejected",
            compare(sum_by(selection.increase(own.GATEWAY_UPDATE_REJECTIONS, rejected), INSTANCE), ">", 0),
            for_="0s",
            severity=Severity.TICKET,
            dimension=Dimension.REQUEST,
            summary="The gateway refused a file of the guard {{ $labels.instance }}.",
            description="What the guard {{ $labels.instance }} decided last is not in force; the gateway goes on with "
            "what it had. Its log says what it refused.",
            scenario=Scenario(
                (
                    Input(
                        series(selection, own.GATEWAY_UPDATE_REJECTIONS, instance=GUARD), Rising(1), Rising(0),
                        Missing(),
                    ),
                ),
                fires_after="5m", resolves_after="32m", labels={"instance": GUARD},
            ),
        ),
        _sre(
            "SreChaosFaultLeft",
            compare(max_by(selection.gauge(own.FAULTS_ACTIVE), INSTANCE, own.FAULT), ">", 0),
            for_="15m",
            severity=Severity.TICKET,
            dimension=Dimension.RESOURCE,
            summary="The injected fault {{ $labels.fault }} is in force for more than 15 minutes.",
            description="No fault may be held longer than chaos.max_hold_seconds; {{ $labels.fault }} is, so that its "
            "revert failed. It does real harm.",
            scenario=_state(selection, own.FAULTS_ACTIVE, {"fault": "gpu-hang"}, "17m"),
        ),
    ]  # fmt: skip


def _readers(selection: Selection) -> list[Alert]:
    return [
        _sre(
            "SreGpuReaderDown",
            _zero(selection, own.GPU_READER_UP),
            for_="2m",
            severity=Severity.TICKET,
            dimension=Dimension.RESOURCE,
            summary="The guard {{ $labels.instance }} cannot read its GPUs.",
            description="The process that reads them does not answer or fails: a call into the driver hangs, or the "
            "driver is gone. Rules on GPUs of {{ $labels.instance }} are blind; a hung driver is itself a fault.",
            scenario=_state(selection, own.GPU_READER_UP, {}, "4m", firing=0, quiet=1),
        ),
        _sre(
            "SreHostReaderDown",
            _zero(selection, own.HOST_READER_UP),
            for_="2m",
            severity=Severity.TICKET,
            dimension=Dimension.RESOURCE,
            summary="The guard {{ $labels.instance }} cannot read the counters of its host.",
            description="/proc and /sys do not answer {{ $labels.instance }} in time: a device or its driver hangs. "
            "The sre_host values are old.",
            scenario=_state(selection, own.HOST_READER_UP, {}, "4m", firing=0, quiet=1),
        ),
    ]


def _notifications(selection: Selection) -> list[Alert]:
    return [
        _sre(
            "SreNotificationsDead",
            compare(sum_by(selection.gauge(own.OUTBOX_MESSAGES, state="dead"), INSTANCE, own.CHANNEL), ">", 0),
            for_="0s",
            severity=Severity.PAGE,
            dimension=Dimension.RESOURCE,
            summary="Channel {{ $labels.channel }} gave up on {{ $value | humanize }} messages.",
            description="Nobody is known to have got them: not over {{ $labels.channel }}, nor over its fallback. They "
            "wait in the outbox of {{ $labels.instance }} for a person.",
            scenario=_state(
                selection, own.OUTBOX_MESSAGES, {"channel": "mail"}, "1m", firing=2, value="2", hidden={"state": "dead"}
            ),
        ),
        _sre(
            "SreNotificationsUncertain",
            compare(sum_by(selection.gauge(own.OUTBOX_MESSAGES, state="perhaps_told"), INSTANCE, own.CHANNEL), ">", 0),
            for_="0s",
            severity=Severity.TICKET,
            dimension=Dimension.RESOURCE,
            summary="Channel {{ $labels.channel }} gave up on {{ $value | humanize }} messages that people may have.",
            description="They may have arrived over {{ $labels.channel }}, whose provider answers too late or not at "
            "all, or the fallback has them. They wait in the outbox of {{ $labels.instance }} until a person looks.",
            scenario=_state(
                selection,
                own.OUTBOX_MESSAGES,
                {"channel": "mail"},
                "1m",
                firing=2,
                value="2",
                hidden={"state": "perhaps_told"},
            ),
        ),
        _sre(
            "SreNotificationsDelayed",
            compare(max_by(selection.gauge(own.OUTBOX_OLDEST_SECONDS), INSTANCE, own.CHANNEL), ">", 300),
            for_="1m",
            severity=Severity.TICKET,
            dimension=Dimension.RESOURCE,
            summary="Channel {{ $labels.channel }} is {{ $value | humanizeDuration }} behind.",
            description="A message for {{ $labels.channel }} of {{ $labels.instance }} has not been delivered for more "
            "than five minutes.",
            scenario=_state(
                selection, own.OUTBOX_OLDEST_SECONDS, {"channel": "mail"}, "2m", firing=360, quiet=2, value="6m 0s"
            ),
        ),
    ]


def _webhook(selection: Selection) -> list[Alert]:
    window = at_least_four_scrapes(selection, 600)
    lost = 'outcome=~"encoded|refused|too_large|unauthorized"'
    return [
        _sre(
            WATCHDOG,
            _one(selection, own.WEBHOOK_UP),
            for_="0s",
            severity=Severity.INFO,
            dimension=Dimension.RESOURCE,
            summary="The way from Prometheus to the guard {{ $labels.instance }} works.",
            description="Fires always: Alertmanager sends it to the webhook of {{ $labels.instance }} every minute, "
            "and the guard pages when it stays away.",
            scenario=_state(selection, own.WEBHOOK_UP, {}, "1m"),
        ),
        _sre(
            CANARY,
            compare(max_by(selection.gauge(own.CANARY_ALERT), INSTANCE, own.ID), "==", 1),
            for_="0s",
            severity=Severity.INFO,
            dimension=Dimension.RESOURCE,
            summary="Canary {{ $labels.id }} of the guard {{ $labels.instance }} is on its way.",
            description="sre notify test --end-to-end sent {{ $labels.id }} from {{ $labels.instance }}; nothing is "
            "wrong.",
            scenario=_state(selection, own.CANARY_ALERT, {"id": "c1"}, "1m"),
        ),
        _sre(
            "SreWebhookRefuses",
            compare(sum_by(selection.increase(own.WEBHOOK_REQUESTS, window, lost), INSTANCE, own.OUTCOME), ">", 0),
            for_="0s",
            severity=Severity.TICKET,
            dimension=Dimension.RESOURCE,
            summary="The webhook refused notifications for good: {{ $labels.outcome }}.",
            description="{{ $value | printf \"%.0f\" }} posts to {{ $labels.instance }} ended as {{ $labels.outcome }} "
            f"within {window}. Alertmanager does not repeat them: their alerts reached nobody through it.",
            scenario=Scenario(
                (
                    Input(
                        series(selection, own.WEBHOOK_REQUESTS, outcome="refused", instance=GUARD),
                        Rising(1), Rising(0), Missing(),
                    ),
                ),
                fires_after="40m", resolves_after="32m",
                labels={"outcome": "refused", "instance": GUARD}, value=f"{seconds(window) / 60:.0f}", interval="1m",
            ),
        ),
    ]  # fmt: skip


def _one(selection: Selection, metric: Metric) -> Expr:
    return compare(max_by(selection.gauge(metric), INSTANCE), "==", 1)


def _zero(selection: Selection, metric: Metric) -> Expr:
    return compare(min_by(selection.gauge(metric), INSTANCE), "==", 0)


def _state(
    selection: Selection,
    metric: Metric,
    labels: dict[str, str],
    after: str,
    *,
    firing: float = 1,
    quiet: float = 0,
    value: str = "",
    hidden: dict[str, str] | None = None,
    interval: str = "15s",
) -> Scenario:
    """
    A gauge that stands at one value or the other. Requests have no part in it: "no traffic" is no guard at all.

    Args:
        hidden: Labels of the series that the alert does not carry.
    """
    source = series(selection, metric, **labels, **(hidden or {}), instance=GUARD)
    return Scenario(
        (Input(source, Steady(firing), Steady(quiet), Missing()),),
        fires_after=after, resolves_after="2m", labels={**labels, "instance": GUARD}, value=value, interval=interval,
    )  # fmt: skip
