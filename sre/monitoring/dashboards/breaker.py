"""Gateway, breaker and guard: what they decided, what that did to traffic, and whether they are well themselves."""

from __future__ import annotations

from sre.metrics import own
from sre.metrics.types import Metric
from sre.monitoring.dashboards import parts
from sre.monitoring.dashboards.model import Annotation, Dashboard, Kind, Limit, Panel, Query, Shown, State
from sre.monitoring.dashboards.sources import (
    Sources,
    age,
    instance_variable,
    job_variable,
    labels,
    matcher,
    metric_variable,
)
from sre.monitoring.levels import INSTANCE, JOB
from sre.monitoring.promql import Expr, compare, max_by, quantile, sum_by

UID = "sre-breaker"
NO_GUARD = "no guard"
NEVER = "never"

ENGINE_STATES = {"ready": 1, "starting": 2, "draining": 3, "stopped": 4, "crashed": 5, "failed": 6, "unknown": 7}
MODES = {"auto": 1, "observe": 2, "suggest": 3, "act": 4}
RULE_STATES = {"ok": 1, "pending": 2, "firing": 3, "recovering": 4, "unknown": 5, "disarmed": 6}
_COLORS = {
    "ready": "green", "ok": "green", "starting": "blue", "recovering": "blue", "draining": "yellow",
    "pending": "yellow", "stopped": "gray", "disarmed": "gray", "crashed": "red", "firing": "red",
    "failed": "dark-red", "unknown": "purple",
}  # fmt: skip


def breaker(from_: Sources) -> Dashboard:
    """State, traffic, actions, health of the toolkit itself; its signals at the end."""
    from_ = from_.choosing("job", "model", "instance")
    return Dashboard(
        UID,
        "sre: gateway and breaker",
        "What the guard sees, decides and does at the gateway. The model is the pool.",
        rows=(
            parts.row("State", _state(from_)),
            parts.row("Traffic at the gateway", _traffic(from_)),
            parts.row("Actions and events", _events(from_)),
            parts.row("Guard, gateway, notifications", _health(from_)),
            parts.row("Signals", _signals(from_), collapsed=True),
        ),
        variables=(
            job_variable(),
            instance_variable(),
            metric_variable("model", "Model", "Pool of engines that serve one model.", own.ENGINE_STATE, own.POOL),
        ),
        annotations=(*parts.common_annotations(from_, all_on=True), *_annotations(from_)),
        refresh="10s",
    )


def _guard(from_: Sources, metric: Metric, *matchers: str) -> Expr:
    """A gauge of the guards that are chosen."""
    return from_.raw.gauge(metric, *matchers, *_chosen(metric))


def _chosen(metric: Metric) -> tuple[str, ...]:
    pool = (matcher(own.POOL, "model"),) if own.POOL in metric.labels else ()
    return (*pool, matcher(JOB, "job"), matcher(INSTANCE, "instance"))


def _rate(from_: Sources, metric: Metric, *by: str) -> Expr:
    return sum_by(from_.rate(metric, *_chosen(metric)), *by)


def _states(names: dict[str, int]) -> tuple[State, ...]:
    return tuple(State(code, name, _COLORS[name]) for name, code in names.items())


def _state(from_: Sources) -> tuple[Panel | None, ...]:
    chosen = _chosen(own.BREAKER_STATE)
    engine = parts.coded(
        from_, own.ENGINE_STATE, ENGINE_STATES, own.STATE, (own.ENGINE, own.POOL), *_chosen(own.ENGINE_STATE)
    )
    return (
        Panel(
            "breaker-state", "Breakers", Kind.STATES, Shown.STATE,
            (Query(parts.breaker_code(from_, *chosen),
                   labels(own.SCOPE, own.TARGET)),),
            "State of each breaker.", "open: new requests are refused; running streams go on.", empty=NO_GUARD,
            width=12, states=parts.BREAKER_STATES, alerts=("SreBreakerOpen", "SreBreakerOverridden"),
        ),
        Panel(
            "engine-state", "Engines", Kind.STATES, Shown.STATE,
            (Query(engine, labels(own.ENGINE)),), "State of each engine's process, as the guard sees it.",
            "crashed or failed; unknown for long: the supervisor does not answer.", empty=NO_GUARD, width=12,
            states=_states(ENGINE_STATES), alerts=("VllmEngineDown", "VllmAllEnginesDown"),
        ),
        Panel(
            "admitted", "Admitted share of new requests", Kind.LINES, Shown.RATIO,
            (Query(max_by(_guard(from_, own.BREAKER_ADMITTED_RATIO), own.SCOPE, own.TARGET),
                   labels(own.SCOPE, own.TARGET)),),
            "1 while all is well, less while a breaker is open or half open.", "below 1 for long.", empty=NO_GUARD,
            top=1.0,
        ),
        Panel(
            "weight", "Weight of engines", Kind.LINES, Shown.RATIO,
            (Query(max_by(_guard(from_, own.ENGINE_WEIGHT_RATIO), own.ENGINE), labels(own.ENGINE)),),
            "Share of its configured weight that each engine gets.", "one engine at zero: the others carry its load.",
            empty=NO_GUARD, top=1.0,
        ),
        Panel(
            "faults", "Injected faults", Kind.LINES, Shown.COUNT,
            (Query(max_by(_guard(from_, own.FAULTS_ACTIVE), own.FAULT), labels(own.FAULT)),),
            "Faults of sre chaos that are in force.", "one that nobody is watching.", empty="none",
            alerts=("SreChaosFaultLeft",),
        ),
    )  # fmt: skip


def _traffic(from_: Sources) -> tuple[Panel | None, ...]:
    engine = labels(own.ENGINE)
    thresholds = from_.settings.thresholds
    canary = quantile(
        0.99, from_.rate(own.CANARY_FIRST_TOKEN_SECONDS, *_chosen(own.CANARY_FIRST_TOKEN_SECONDS), part="bucket"),
        own.ENGINE,
    )  # fmt: skip
    return (
        Panel(
            "outcomes", "Requests by outcome", Kind.LINES, Shown.REQUESTS_PER_SECOND,
            (Query(_rate(from_, own.REQUESTS, own.OUTCOME), labels(own.OUTCOME)),),
            "Requests that ended, by what that says about the engine.", "failure.", stacked=True,
        ),
        Panel(
            "refused", "Refused requests", Kind.LINES, Shown.REQUESTS_PER_SECOND,
            # Every reason is counted from 0 on; only those that occur are drawn.
            (
                Query(
                    compare(_rate(from_, own.REJECTED, own.POOL, own.REASON), ">", 0), labels(own.POOL, own.REASON)
                ),
            ),
            "New requests that were answered with a refusal, by reason.", "any, unless a breaker is open on purpose.",
            empty="none refused", stacked=True,
        ),
        Panel(
            "client-aborts", "Requests given up by clients", Kind.LINES, Shown.REQUESTS_PER_SECOND,
            (Query(_rate(from_, own.CLIENT_ABORTS, own.ENGINE), engine),), "Requests that their client gave up.",
            "a rise: answers come too late.",
        ),
        Panel(
            "in-flight", "Requests in flight", Kind.LINES, Shown.COUNT,
            (Query(max_by(_guard(from_, own.ENGINE_IN_FLIGHT), own.ENGINE), engine),),
            "Requests that the gateway has open on each engine.", "flat above zero while the step's age grows: a hang.",
            empty=NO_GUARD, alerts=("VllmEngineHung",),
        ),
        Panel(
            "step-age", "Time since an engine step", Kind.LINES, Shown.SECONDS,
            (Query(max_by(_guard(from_, own.ENGINE_STEP_AGE_SECONDS), own.ENGINE), engine),),
            "While requests are in flight; 0 without any.",
            "above the threshold and the engine's own limit (sre_engine_hang_limit_seconds): it hangs.", empty=NO_GUARD,
            limits=(Limit(thresholds.engine_stuck_seconds, "VllmEngineHung"),),
        ),
        Panel(
            "canary-first-token", "First token of canaries, P99", Kind.LINES, Shown.SECONDS, (Query(canary, engine),),
            "Time to the first token of the guard's own small requests.", "a rise while users' requests are few.",
            empty="no canaries",
        ),
    )  # fmt: skip


def _events(from_: Sources) -> tuple[Panel | None, ...]:
    def growth(key: str, title: str, metric: Metric, by: tuple[str, ...], about: str, bad: str, *alerts: str) -> Panel:
        expr = sum_by(from_.grown(metric, *_chosen(metric)), *by)
        return Panel(
            key, title, Kind.LINES, Shown.COUNT, (Query(expr, labels(*by)),), about, bad, empty=NEVER, width=6,
            alerts=alerts,
        )  # fmt: skip

    def gauge(
        key: str, title: str, metric: Metric, by: tuple[str, ...], about: str, bad: str, empty: str, *alerts: str
    ) -> Panel:
        expr = max_by(_guard(from_, metric), *by)
        return Panel(
            key, title, Kind.LINES, Shown.COUNT, (Query(expr, labels(*by) or title.lower()),), about, bad, empty=empty,
            width=6, alerts=alerts,
        )  # fmt: skip

    return (
        growth(
            "openings", "Openings", own.BREAKER_OPENINGS, (own.SCOPE, own.TARGET, own.REASON),
            "Times a breaker opened, by the rule that tripped it.", "the same reason again and again.",
        ),
        growth(
            "actions", "Actions", own.ACTIONS, (own.ACTION, own.OUTCOME),
            "What the guard did, and what became of it.", "failed ones.",
        ),
        growth(
            "restarts", "Restarts of engines", own.ENGINE_RESTARTS, (own.ENGINE,),
            "Times an engine's process was replaced, whoever asked for it.", "several within an hour.",
            "SreEngineRestarts",
        ),
        gauge(
            "budgets", "Actions left", own.ACTION_BUDGET, (own.ACTION, own.TARGET),
            "How many more actions of a kind the budget allows now.", "zero: the guard only tells, a person must act.",
            NO_GUARD, "SreActionBudgetSpent",
        ),
        growth(
            "incidents", "Incidents opened", own.INCIDENTS, (own.REASON,), "Incidents, by reason.", "any.",
        ),
        gauge(
            "incidents-open", "Incidents open", own.INCIDENTS_OPEN, (), "Incidents that are not resolved.",
            "one that stays: sre incident list.", NO_GUARD,
        ),
        growth(
            "canaries", "Canaries", own.CANARIES, (own.ENGINE, own.VERDICT),
            "Small requests the guard sends to prove an engine.", "any verdict but success.",
        ),
        growth(
            "deliveries", "Deliveries", own.DELIVERIES, (own.CHANNEL, own.OUTCOME), "Tries to deliver a message.",
            "failed ones: somebody was not told.",
        ),
    )  # fmt: skip


def _health(from_: Sources) -> tuple[Panel | None, ...]:
    def up(key: str, title: str, metric: Metric, about: str, bad: str, *alerts: str, good: int = 1) -> Panel:
        states = (State(good, "yes" if good else "no", "green"), State(1 - good, "no" if good else "yes", "red"))
        expr = max_by(_guard(from_, metric), INSTANCE)
        return Panel(
            key, title, Kind.STAT, Shown.STATE, (Query(expr, labels(INSTANCE)),), about, bad, empty=NO_GUARD,
            width=4, height=4, states=states, alerts=alerts,
        )  # fmt: skip

    turn = quantile(0.99, from_.rate(own.GUARD_TICK_SECONDS, *_chosen(own.GUARD_TICK_SECONDS), part="bucket"), INSTANCE)
    last = max_by(age(_guard(from_, own.GUARD_LAST_TICK_TIMESTAMP)), INSTANCE)
    mode = parts.coded(from_, own.GUARD_MODE, MODES, own.MODE, (INSTANCE,), *_chosen(own.GUARD_MODE))
    blind = sum_by(_guard(from_, own.RULE_BLIND), own.RULE)
    return (
        up("gateway-up", "Gateway answers", own.GATEWAY_UP, "Whether Envoy's admin socket answers.",
           "no: the guard can neither see nor steer it.", "SreGatewayDown"),
        up("store-up", "State on disk is sound", own.STATE_STORE_UP, "Whether the state on disk can be trusted.",
           "no: the guard watches and does not act.", "SreStateStoreDown"),
        up("gpu-reader-up", "GPU reader answers", own.GPU_READER_UP, "Whether the process that reads the GPUs answers.",
           "no: GPU rules are blind.", "SreGpuReaderDown"),
        up("host-reader-up", "Host reader answers", own.HOST_READER_UP, "Whether /proc and /sys answer in time.",
           "no: disk and network values are old.", "SreHostReaderDown"),
        up("paused", "Automation paused", own.GUARD_PAUSED, "Whether a person holds automation.",
           "yes, forgotten: nothing acts on a fault.", "SreGuardPaused", good=0),
        Panel(
            "mode", "Mode", Kind.STAT, Shown.STATE, (Query(mode, labels(INSTANCE)),),
            "Mode of the guard: auto, observe, suggest or act.", "observe where action is expected.", empty=NO_GUARD,
            width=4, height=4, states=tuple(State(code, name, "blue") for name, code in MODES.items()),
        ),
        Panel(
            "turn", "Turn of the guard, P99", Kind.LINES, Shown.SECONDS, (Query(turn, labels(INSTANCE)),),
            "Duration of one turn: observe, decide, apply, record.", "near a second: faults are seen late.",
            empty=NO_GUARD, alerts=("SreGuardStalled",),
        ),
        Panel(
            "turn-age", "Time since a turn", Kind.LINES, Shown.SECONDS, (Query(last, labels(INSTANCE)),),
            "Age of the guard's last finished turn; includes up to one scrape interval.", "a rise without end.",
            empty=NO_GUARD, alerts=("SreGuardStalled", "SreGuardDown"),
        ),
        Panel(
            "guard-errors", "Errors of the guard", Kind.LINES, Shown.COUNT,
            (Query(sum_by(from_.grown(own.GUARD_ERRORS, *_chosen(own.GUARD_ERRORS)), own.BOUNDARY),
                   labels(own.BOUNDARY)),),
            "Turns or parts of turns that failed; the loop went on.", "any: see the guard's log.", empty=NEVER,
            alerts=("SreGuardErrors",),
        ),
        Panel(
            "outbox", "Outbox", Kind.LINES, Shown.COUNT,
            (Query(max_by(_guard(from_, own.OUTBOX_MESSAGES), own.CHANNEL, own.STATE),
                   labels(own.CHANNEL, own.STATE)),),
            "Messages that wait, and those given up: dead, and perhaps_told (may have arrived, or a fallback has it).",
            "dead ones: nobody is known to have been told.", empty="no channels",
            alerts=("SreNotificationsDead", "SreNotificationsUncertain"),
        ),
        Panel(
            "outbox-age", "Oldest message", Kind.LINES, Shown.SECONDS,
            (Query(max_by(_guard(from_, own.OUTBOX_OLDEST_SECONDS), own.CHANNEL), labels(own.CHANNEL)),),
            "Age of the oldest message that waits.", "minutes.", empty="no channels",
            alerts=("SreNotificationsDelayed",),
        ),
        Panel(
            "gateway-rejections", "Files refused by Envoy", Kind.LINES, Shown.COUNT,
            (Query(sum_by(from_.grown(own.GATEWAY_UPDATE_REJECTIONS, *_chosen(own.GATEWAY_UPDATE_REJECTIONS)),
                          INSTANCE), labels(INSTANCE)),),
            "Files of ours that Envoy did not take; the last good one stays in force.", "any.", empty=NEVER,
            alerts=("SreGatewayUpdateRejected",),
        ),
        Panel(
            "webhook", "Posts to the webhook", Kind.LINES, Shown.COUNT,
            (Query(sum_by(from_.grown(own.WEBHOOK_REQUESTS, *_chosen(own.WEBHOOK_REQUESTS)), own.OUTCOME),
                   labels(own.OUTCOME)),),
            "What Alertmanager posts, by what became of it; the heartbeat comes every minute.",
            "none at all; any that is refused for good.", empty="no webhook", width=12,
            alerts=("SreWatchdog", "SreCanary", "SreWebhookRefuses"),
        ),
        Panel(
            "blind", "Blind rules", Kind.LINES, Shown.COUNT, (Query(blind, labels(own.RULE)),),
            "Targets whose signal a rule has not seen for too long.", "any: that rule cannot trip.", empty=NO_GUARD,
            width=12, alerts=("SreRuleBlind",),
        ),
    )  # fmt: skip


def _signals(from_: Sources) -> tuple[Panel | None, ...]:
    rule = parts.coded(from_, own.RULE_STATE, RULE_STATES, own.STATE, (own.RULE, own.TARGET), *_chosen(own.RULE_STATE))
    by = (own.SIGNAL, own.TARGET)
    name = labels(own.SIGNAL, own.TARGET)
    return (
        Panel(
            "rule-state", "Rules", Kind.STATES, Shown.STATE, (Query(rule, labels(own.RULE, own.TARGET)),),
            "What each rule says of each target.", "firing; unknown: it does not see its signal.", empty=NO_GUARD,
            width=24, height=12, states=_states(RULE_STATES),
        ),
        Panel(
            "signal-value", "Signals", Kind.LINES, Shown.COUNT,
            (Query(max_by(_guard(from_, own.SIGNAL_VALUE), *by), name),),
            "Last value of each signal, in its own unit.", "what its rule says.", empty="none seen", width=12,
            bottom=None,
        ),
        Panel(
            "signal-age", "Age of signals", Kind.LINES, Shown.SECONDS,
            (Query(max_by(_guard(from_, own.SIGNAL_AGE_SECONDS), *by), name),),
            "Age of each signal's last sample.", "a rise without end.", empty="none seen", width=12,
        ),
    )  # fmt: skip


def _annotations(from_: Sources) -> tuple[Annotation, ...]:
    window = from_.event_window
    actions = compare(sum_by(from_.grown(own.ACTIONS, window=window), own.ACTION, own.OUTCOME), ">", 0)
    restarts = compare(sum_by(from_.grown(own.ENGINE_RESTARTS, window=window), own.ENGINE), ">", 0)
    return (
        Annotation(
            "Actions", actions, labels(own.ACTION), f"{{{{{own.ACTION}}}}}: {{{{{own.OUTCOME}}}}}", "blue",
            (own.ACTION, own.OUTCOME),
        ),
        Annotation(
            "Restarts", restarts, f"restart of {{{{{own.ENGINE}}}}}", "The engine's process was replaced.", "yellow",
            (own.ENGINE,),
        ),
    )  # fmt: skip
