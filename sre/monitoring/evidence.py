"""
What the things that were seen say about one selector of a rule: are there series, are they what the rule is written
for, and if not, why not. What no page could show is "not looked at"; what a whole Prometheus lacks is missing.
"""

from __future__ import annotations

import difflib
import enum
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from sre.metrics import dcgm, envoy, node, own, vllm
from sre.metrics.catalogue import CATALOGUE, RAY_PREFIXES, VLLM_PREFIX, Release, plain, release_of
from sre.metrics.exposition import Series
from sre.metrics.types import Exporter, Kind, Metric, Unit, Version
from sre.monitoring.levels import TARGET_LABELS
from sre.monitoring.lint.tree import Matcher, Selector
from sre.monitoring.promql import LE, Selection
from sre.monitoring.seen import Down, Seen, fits

BLANK = 9e18
"""DCGM gives 2^63 and its neighbours for "no value"."""
_SHOWN = 6
"""Values named in a sentence."""
BUILD_INFO: Mapping[Exporter, Metric] = {Exporter.NODE: node.BUILD_INFO, Exporter.SRE: own.BUILD_INFO}
HEARTBEATS: Mapping[Exporter, Metric] = {
    Exporter.VLLM: vllm.ITERATION_TOKENS,
    Exporter.ENVOY: envoy.DOWNSTREAM_REQUESTS,
}
"""What counts whenever there is traffic: while it stands at 0, no other counter of the exporter can have moved."""


_WHO: Mapping[Exporter, str] = {Exporter.PROMETHEUS: "a Prometheus", Exporter.SRE: "the guard's /metrics"}

_SETTINGS: Mapping[Exporter, str] = {
    Exporter.VLLM: "monitoring.vllm_version",
    Exporter.DCGM: "monitoring.dcgm_exporter_version",
}


class Verdict(enum.Enum):
    """What becomes of a rule, best first."""

    CAN_FIRE = "can fire"
    NO_TRAFFIC = "no traffic"
    """All is there, and nothing has been counted yet."""
    NOT_LOOKED_AT = "not looked at"
    """It rests on something that was not among the URLs."""
    MISLEADS = "misleads"
    """It has data, but not the data it is written for: another unit, type or label."""
    CANNOT_FIRE = "cannot fire"

    @property
    def rank(self) -> int:
        return list(Verdict).index(self)


class Cause(enum.Enum):
    MISSING = "missing"
    RENAMED = "renamed"
    REMOVED = "removed"
    COMES_LATER = "comes later"
    SWITCHED_OFF = "switched off"
    PREFIX = "other prefix"
    NO_EXPORTER = "no exporter"
    TARGET_DOWN = "target down"
    UNIT = "wrong unit"
    TYPE = "wrong type"
    LABEL = "label absent"
    APART = "labels never meet"
    NATIVE = "native histogram"
    EDGE = "no such bucket"
    NO_TRAFFIC = "no traffic"
    NOT_LOOKED_AT = "not looked at"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why; ``text`` is a sentence with the remedy."""

    cause: Cause
    metric: str
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """A verdict and what led to it."""

    verdict: Verdict
    reasons: tuple[Reason, ...] = ()


FINE = Outcome(Verdict.CAN_FIRE)


class Evidence:
    """Judges selectors against what was seen. Pure; answers are remembered."""

    def __init__(self, seen: Seen, selection: Selection) -> None:
        self.seen = seen
        self._selection = selection
        self._own_labels = TARGET_LABELS | {label for label, _ in selection.matchers}
        self._known: dict[tuple[str, tuple[Matcher, ...]], tuple[Outcome, Outcome]] = {}

    @property
    def prefix(self) -> str:
        """What vLLM's names begin with."""
        return self._selection.prefix

    def job(self, exporter: Exporter) -> str | None:
        """The label ``job`` of an exporter's targets."""
        return self._selection.jobs.get(exporter)

    # ---- Exporters ----------------------------------------------------------------------------------------------

    @cached_property
    def _plain_names(self) -> frozenset[str]:
        """Names that were seen, vLLM's in its own spelling under whatever prefix."""
        return frozenset(self._plain(name) for name in self.seen.names)

    def _plain(self, name: str) -> str:
        found = plain(name, self._selection.prefix)
        if found == name and (cut := re.search(r"vllm[:_]", name)) and not name.startswith(VLLM_PREFIX):
            return VLLM_PREFIX + name[cut.end() :]
        return found

    @cached_property
    def releases(self) -> Mapping[Exporter, Release]:
        """Exporters that are there, with what can be said of their release."""
        found: dict[Exporter, Release] = {}
        for exporter in Exporter:
            names = self._plain_names
            if exporter is Exporter.VLLM:  # any web service has http_requests_total
                names = frozenset(name for name in names if name.startswith(VLLM_PREFIX))
            release = release_of(exporter, names, self._stated(exporter))
            if release is not None:
                found[exporter] = release
        return found

    def _stated(self, exporter: Exporter) -> Version | None:
        metric = BUILD_INFO.get(exporter)
        for series in () if metric is None else self.seen.series(metric.sample):
            try:
                return Version.parse(series.labels.get("version", ""))
            except ValueError:
                continue
        return None

    def idle(self, exporter: Exporter) -> bool:
        """Whether nothing of the exporter can have been counted yet."""
        heartbeat = HEARTBEATS.get(exporter)
        series = () if heartbeat is None else self.seen.series(self._selection.name(heartbeat.sample))
        return bool(series) and all(one.value == 0 for one in series)

    # ---- Selectors ----------------------------------------------------------------------------------------------

    def look(self, selector: Selector) -> tuple[Outcome, Outcome]:
        """
        What a selector finds: (are there series, did they ever count something).

        The second is what a divisor or a quantile needs; for gauges both are the same.
        """
        key = (selector.name, selector.matchers)
        if key not in self._known:
            self._known[key] = self._look(*key)
        return self._known[key]

    def _look(self, name: str, matchers: tuple[Matcher, ...]) -> tuple[Outcome, Outcome]:
        metric = CATALOGUE.by_sample(name, self._selection.prefix)
        matched = self._matched(name, matchers)
        if not self.seen.series(name):
            outcome = self._missing(name, metric)
        elif not matched:
            outcome = self._mismatch(name, metric, matchers)
        elif metric is None:
            outcome = FINE
        else:
            wrong = self.wrong(name, metric, matched)
            outcome = Outcome(Verdict.MISLEADS, wrong) if wrong else FINE
        return outcome, self._busy(name, metric, matched, outcome)

    def _matched(self, name: str, matchers: tuple[Matcher, ...]) -> tuple[Series, ...]:
        own_only = [matcher for matcher in matchers if matcher.label not in self._own_labels]
        pages = (one for one in self.seen.pages.get(name, ()) if all(fits(one.labels, m) for m in own_only))
        fleet = (one for one in self.seen.fleet.get(name, ()) if all(fits(one.labels, m) for m in matchers))
        return (*pages, *fleet)

    def _busy(self, name: str, metric: Metric | None, matched: tuple[Series, ...], outcome: Outcome) -> Outcome:
        if (
            outcome.verdict is not Verdict.CAN_FIRE
            or metric is None
            or metric.kind is Kind.GAUGE
            or metric.rate_already
        ):
            return outcome
        if any(one.value != 0 for one in matched) or not (matched or self.idle(metric.exporter)):
            return outcome
        text = f"{name} has counted nothing yet; send some traffic and ask again"
        return Outcome(Verdict.NO_TRAFFIC, (Reason(Cause.NO_TRAFFIC, name, text),))

    def wrong(self, name: str, metric: Metric, matched: tuple[Series, ...]) -> tuple[Reason, ...]:
        """What is not as the catalogue says: type, labels, range of values."""
        reasons = []
        stated = self.seen.kind(metric)
        if stated not in (None, metric.kind) and not (metric.untyped or metric.rate_already):
            text = (
                f"{name} is a {stated.value if stated else ''}, expected was a {metric.kind.value}; is it ours at all?"
            )
            reasons.append(Reason(Cause.TYPE, name, text))
        for label in metric.required_labels:
            bare = [one for one in matched if not one.labels.get(label)]
            if bare and not (metric.exporter is Exporter.SRE and label in bare[0].labels):
                other = f"exported_{label}"
                hint = (
                    f"Prometheus calls it {other}; set honor_labels, or drop the target's own label {label}"
                    if other in bare[0].labels
                    else f"it has {_listed(bare[0].labels)}"
                )
                reasons.append(Reason(Cause.LABEL, name, f"{name} has series without the label {label}: {hint}"))
        values = [one.value for one in matched if math.isfinite(one.value) and abs(one.value) < BLANK]
        if metric.range is not None and values and name == metric.sample:
            reasons += self._out_of_range(name, metric, values)
        return tuple(reasons)

    @staticmethod
    def _out_of_range(name: str, metric: Metric, values: list[float]) -> list[Reason]:
        low, high = metric.range or (-math.inf, math.inf)
        unit, seen = metric.unit.value, f"{min(values):g} to {max(values):g}"
        if min(values) < low or max(values) > high:
            guess = "per cent; " if metric.unit is Unit.RATIO and max(values) <= 100 else ""
            text = f"{name} should be {unit}, {low:g} to {high:g}, and shows {seen}: {guess or 'another unit; '}"
            return [Reason(Cause.UNIT, name, text + "look at the exporter's fields and release")]
        if metric.unit is Unit.PERCENT and 0 < max(values) < 1 and not max(values).is_integer():
            text = f"{name} should be per cent and shows {seen}: a ratio; look at the exporter's fields and release"
            return [Reason(Cause.UNIT, name, text)]
        return []

    # ---- Why nothing fits -----------------------------------------------------------------------------------------

    def _mismatch(self, name: str, metric: Metric | None, matchers: tuple[Matcher, ...]) -> Outcome:
        """Series of the name are there; none fits the matchers."""
        series = self.seen.series(name)
        alone = [m for m in matchers if not any(fits(one.labels, m) for one in series)] or list(matchers)
        # A label of the target is judged where Prometheus is; pages do not have it.
        judged = [m for m in alone if m.label not in self._own_labels or name in self.seen.fleet] or alone
        matcher = judged[0]
        wanted = f'{matcher.label}{matcher.operator}"{matcher.value}"'
        values = sorted({one.labels[matcher.label] for one in series if matcher.label in one.labels})
        if matcher.label == LE:
            text = (
                f"{name} has no bucket that fits {wanted}; its edges: {_listed(values)}; set monitoring.custom_buckets"
            )
            return _cannot(Cause.EDGE, name, text)
        if not values:
            return _cannot(Cause.LABEL, name, f"{name} has no label {matcher.label} ({wanted})")
        if matcher.label in self._own_labels:
            where = "monitoring.jobs" if matcher.label == "job" else "monitoring.matchers"
            text = f"no series of {name} has {wanted}; there are {_listed(values)}; set {where} in sre.yaml"
            return _cannot(Cause.LABEL, name, text)
        if metric is not None and matcher.label == metric.labels[-1:][0] and metric.values:
            expected = [value for value in metric.values if fits({matcher.label: value}, matcher)]
            if expected:
                text = f"no series of {name} has {wanted}, which should be there from the start: {_listed(values)}"
                return _cannot(Cause.LABEL, name, text)
        return FINE  # a value that comes with its first event

    def _missing(self, name: str, metric: Metric | None) -> Outcome:
        """No series of the name at all."""
        seen = self.seen
        if metric is None:
            return _cannot(Cause.MISSING, name, f"nobody exposes {name}{self._near(name)}")
        exporter = metric.exporter
        if exporter not in self.releases:
            return self._no_exporter(name, exporter)
        if (other := self._other_prefix(name)) is not None:
            prefix = other.removesuffix(plain(name, self._selection.prefix).removeprefix(VLLM_PREFIX))
            text = f"{name} is exposed as {other}; set monitoring.metric_prefix to {prefix!r}"
            return _cannot(Cause.PREFIX, name, text)
        if metric.kind is Kind.HISTOGRAM and (family := name.rpartition("_")[0]) in seen.names:
            text = (
                f"{name} is not there, and {family} is: this Prometheus keeps it as a native histogram"
                " (convert_classic_histograms_to_nhcb or scrape_native_histograms); set"
                " always_scrape_classic_histograms: true for the job"
            )
            return _cannot(Cause.NATIVE, name, text)
        if (late := seen.declares(metric) or metric.late) and not metric.optional:
            return FINE
        for down in seen.down:
            if down.job == self.job(exporter):
                return self._down(name, down)
        release = self.releases[exporter]
        if (relative := self._relative(metric)) is not None:
            text = (
                f"{name} is called {_counterpart(name, metric, relative)} here"
                + (f" (renamed in {since})" if (since := metric.since or relative.since) else "")
                + f"; generate the rules for this release ({exporter.value} {release}) or for any"
            )
            return _cannot(Cause.RENAMED, name, text)
        if metric.removed is not None and not metric.exists_in(release.version):
            successor = CATALOGUE.successor(metric)
            gone = metric.hidden or metric.removed
            text = f"{name} is gone since {exporter.value} {gone}" + (f"; use {successor.name}" if successor else "")
            return _cannot(Cause.REMOVED, name, text)
        if metric.since is not None and not (release.at_least is not None and release.at_least >= metric.since):
            setting = _SETTINGS.get(exporter)
            hint = f"; with {setting} set, rules do without it" if setting else ""
            text = f"{name} comes with {exporter.value} {metric.since}; this is {release}{hint}"
            return _cannot(Cause.COMES_LATER, name, text)
        if metric.optional:
            return _cannot(Cause.SWITCHED_OFF, name, self._switched_off(name, metric, declared=late))
        if exporter is Exporter.DCGM and self._mig():
            return _cannot(Cause.SWITCHED_OFF, name, f"{name} is not given for a card that is divided (MIG)")
        text = f"{name} is missing, though {exporter.value} {release} should have it{self._near(name)}"
        return _cannot(Cause.MISSING, name, text)

    def _near(self, name: str) -> str:
        """The name seen that looks most like it, as the end of a sentence."""
        # A large fleet has 100,000 names; those that begin alike are enough.
        candidates = [other for other in self.seen.names if other[:4] == name[:4]]
        near = difflib.get_close_matches(name, candidates, n=1, cutoff=0.85)
        return f"; there is {near[0]}" if near else ""

    def _no_exporter(self, name: str, exporter: Exporter) -> Outcome:
        if not self.seen.prometheus:
            text = f"{_WHO.get(exporter, exporter.value)} is not among the URLs"
            return Outcome(Verdict.NOT_LOOKED_AT, (Reason(Cause.NOT_LOOKED_AT, name, text),))
        for down in self.seen.down:
            if down.job == self.job(exporter):
                return self._down(name, down)
        text = f"{name}: no target exposes metrics of {_WHO.get(exporter, exporter.value)}; is it scraped?"
        return _cannot(Cause.NO_EXPORTER, name, text)

    @staticmethod
    def _down(name: str, down: Down) -> Outcome:
        error = f" ({down.error})" if down.error else ""
        text = f"{name} is not seen while the target {down.instance} of job {down.job} is down{error}"
        return _cannot(Cause.TARGET_DOWN, name, text)

    def _other_prefix(self, name: str) -> str | None:
        """The name under which the wanted metric of vLLM stands there, if only its prefix differs."""
        wanted = plain(name, self._selection.prefix)
        if not wanted.startswith(VLLM_PREFIX):
            return None
        rest = wanted.removeprefix(VLLM_PREFIX)
        likely = [prefix + rest for prefix in (VLLM_PREFIX, *RAY_PREFIXES)]
        others = sorted(other for other in self.seen.names if other.endswith(("vllm:" + rest, "vllm_" + rest)))
        return next((other for other in (*likely, *others) if other in self.seen.names and other != name), None)

    def _relative(self, metric: Metric) -> Metric | None:
        """The older or newer name of the metric that is there."""
        newest = CATALOGUE.successor(metric) or metric
        family = (newest, *CATALOGUE.predecessors(newest))
        return next((other for other in family if other != metric and other.sample in self._plain_names), None)

    def _switched_off(self, name: str, metric: Metric, *, declared: bool) -> str:
        if metric.needs:
            return f"{name} is not exposed: it needs {metric.needs}"
        if metric.exporter is Exporter.DCGM:
            return f"{name} is not exposed: add it to the exporter's fields (CSV), if the card has it"
        if metric.exporter is Exporter.SRE:
            return f"{name} has no series: the guard does not see such a thing on this machine"
        return f"{name} is not exposed: the feature is off, or this machine lacks it"

    def _mig(self) -> bool:
        names = (metric.sample for metric in dcgm.DCGM_METRICS)
        return any(one.labels.get(dcgm.MIG_INSTANCE) for name in names for one in self.seen.series(name))


def _counterpart(name: str, metric: Metric, relative: Metric) -> str:
    """The sample of ``relative`` that is what ``name`` is of ``metric``."""
    if name.endswith(metric.sample.removeprefix(VLLM_PREFIX)):
        return relative.sample
    return relative.name + "_" + name.rpartition("_")[2]


def _cannot(cause: Cause, metric: str, text: str) -> Outcome:
    return Outcome(Verdict.CANNOT_FIRE, (Reason(cause, metric, text),))


def _listed(values: Iterable[str]) -> str:
    """The first few, as text."""
    every = list(values)
    shown = ", ".join(every[:_SHOWN])
    return shown + (f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else "") if every else "none"
