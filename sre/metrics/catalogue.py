"""
Every metric in one place, whoever exposes it: by sample name, by exporter, by release; successors and relatives.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sre.metrics import dcgm, envoy, node, own, prometheus, vllm, vllm_past
from sre.metrics.types import Exporter, Kind, Metric, Version

VLLM_PREFIX = "vllm:"
RAY_PREFIXES = ("ray_vllm:", "ray_vllm_")
"""What Ray puts in front of vLLM's names, older and newer releases."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All metrics. Immutable; one exists: ``CATALOGUE``."""

    metrics: tuple[Metric, ...]
    _families: Mapping[str, Metric] = field(init=False, repr=False, compare=False)
    _samples: Mapping[str, Metric] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_families", {metric.name: metric for metric in self.metrics})
        samples = {sample: metric for metric in self.metrics for sample in metric.samples}
        object.__setattr__(self, "_samples", samples)

    def by_sample(self, name: str, prefix: str = VLLM_PREFIX) -> Metric | None:
        """
        The metric a sample belongs to (``…_total``, ``…_bucket`` and so on); None when nobody exposes such a name.

        ``prefix`` is what vLLM's names begin with in this installation; a name in vLLM's own spelling is found too.
        """
        return self._samples.get(plain(name, prefix)) or self._samples.get(name)

    def family(self, name: str) -> Metric | None:
        """The metric of this family name, or None. Counters go with and without ``_total``."""
        return self._families.get(name) or self._families.get(name.removesuffix("_total"))

    def of(self, exporter: Exporter) -> tuple[Metric, ...]:
        """Everything the exporter has exposed in any release."""
        return tuple(metric for metric in self.metrics if metric.exporter is exporter)

    def existing(self, exporter: Exporter, version: Version | None) -> tuple[Metric, ...]:
        """What the release exposes without being asked to; None: any release."""
        return tuple(metric for metric in self.of(exporter) if metric.exists_in(version))

    def successor(self, metric: Metric) -> Metric | None:
        """What replaces it now, over several renamings; None where nothing does."""
        seen = {metric.name}
        found: Metric | None = None
        while metric.replaced_by is not None:
            following = self._samples.get(metric.replaced_by) or self._families.get(metric.replaced_by)
            if following is None or following.name in seen:
                break
            seen.add(following.name)
            metric = found = following
        return found

    def predecessors(self, metric: Metric) -> tuple[Metric, ...]:
        """Metrics that it replaced, the latest first."""
        return tuple(
            sorted(
                (other for other in self.metrics if other.name != metric.name and self.successor(other) == metric),
                key=lambda other: (other.removed or _NEVER, other.name),
                reverse=True,
            )
        )

    def nearest(self, name: str, count: int = 1) -> tuple[str, ...]:
        """Sample names that look most like ``name``, for "did you mean"; empty when none comes near."""
        close = difflib.get_close_matches(name, self._samples, n=count, cutoff=0.75)
        return tuple(close)


KNOWN_RELEASES: Mapping[Exporter, tuple[Version, Version]] = {
    Exporter.VLLM: (Version(0, 8), Version(0, 33)),
    Exporter.DCGM: (Version(2, 0), Version(4, 9)),
}
"""The oldest and the newest release whose metrics were looked at."""


def plain(name: str, prefix: str = VLLM_PREFIX) -> str:
    """A sample's name in vLLM's own spelling: ``ray_vllm_num_requests_running`` → ``vllm:num_requests_running``."""
    for known in (prefix, *RAY_PREFIXES):
        if known and known != VLLM_PREFIX and name.startswith(known):
            return VLLM_PREFIX + name.removeprefix(known)
    return name


_NEVER = Version(9999, 0)

CATALOGUE = Catalogue((
    *vllm.ENGINE_METRICS, vllm.CACHE_CONFIG_INFO, *vllm.OPTIONAL_METRICS, *vllm.HTTP_METRICS,
    *vllm_past.PAST_METRICS, *dcgm.DCGM_METRICS, *node.NODE_METRICS, *envoy.ENVOY_METRICS,
    *own.OWN_METRICS.values(), *prometheus.PROMETHEUS_METRICS,
))  # fmt: skip


def variants(metric: Metric, version: Version | None) -> tuple[Metric, ...]:
    """
    ``metric`` and the names it had or has in other releases, the newest first: what to join with ``or``.

    Only those that the release exposes; None: all. Each is of the same kind; units can differ (per cent and ratio), and
    scaling is the caller's. Empty when the release has none of them.
    """
    newest = CATALOGUE.successor(metric) or metric
    family = (newest, *CATALOGUE.predecessors(newest))
    return tuple(other for other in family if _alike(other, newest) and other.exists_in(version))


def _alike(metric: Metric, other: Metric) -> bool:
    """Whether one can stand for the other: of one kind (a rate already is a gauge), histograms of one unit too."""

    def kind(of: Metric) -> Kind:
        return Kind.GAUGE if of.rate_already else of.kind

    return kind(metric) is kind(other) and (metric.kind is not Kind.HISTOGRAM or metric.unit is other.unit)


# ---- Which release is it? -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Release:
    """
    Which releases fit what was seen.

    Attributes:
        at_least, below: Bounds; None is open.
        exact: The release where the exporter states it.
    """

    at_least: Version | None = None
    below: Version | None = None
    exact: Version | None = None

    def __str__(self) -> str:
        if self.exact is not None:
            return str(self.exact)
        if self.at_least is not None and self.below is not None:
            return f"{self.at_least} or later, before {self.below}"
        if self.at_least is not None:
            return f"{self.at_least} or later"
        return f"before {self.below}" if self.below is not None else "unknown"

    @property
    def version(self) -> Version | None:
        """One release to reckon with: the stated one, else the oldest that fits."""
        return self.exact or self.at_least


def release_of(exporter: Exporter, names: Iterable[str], stated: Version | None = None) -> Release | None:
    """
    Which release of ``exporter`` exposes samples of these names (vLLM's in its own spelling); None: it is not there.

    A name that came in X.Y says "X.Y or later"; one that is gone since X.Y says "before X.Y". Where both contradict one
    another (several engines of different age behind one Prometheus) the bounds are those of the names that came.
    """
    found = (CATALOGUE.by_sample(name) for name in names)
    known = {metric.name: metric for metric in found if metric is not None and metric.exporter is exporter}
    if not known:
        return None
    at_least = max((metric.since for metric in known.values() if metric.since is not None), default=None)
    below = min((metric.removed for metric in known.values() if metric.removed is not None), default=None)
    if at_least is not None and below is not None and below <= at_least:
        below = None
    return Release(at_least, below, stated)
