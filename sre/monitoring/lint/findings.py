"""What the lint says, and what it is told: findings, severities, options."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from sre.errors import ConfigError
from sre.metrics.types import Exporter, Version


class Severity(enum.Enum):
    """How bad a finding is; only errors make ``sre rules lint`` answer "no", with ``--strict`` warnings too."""

    ERROR = "error"
    """Wrong: it never fires, always fires, lies, or Prometheus refuses it."""
    WARNING = "warning"
    """Right today, wrong in a situation that will come."""
    INFO = "info"
    """Could be said better."""


@dataclass(frozen=True, slots=True)
class Check:
    """
    One check.

    Attributes:
        id: ``family/check`` in kebab-case; what ``--disable`` and comments name.
        why: One sentence: what goes wrong without it.
        remedy: What to write instead.
    """

    id: str
    severity: Severity
    why: str
    remedy: str


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """
    One thing found.

    Attributes:
        line, column: Counted from 1.
        check: Id of the check.
        message: What is wrong here, naming the rule, panel or variable.
        remedy: What to do about it.
    """

    path: str
    line: int
    column: int
    check: str
    severity: Severity = field(compare=False)
    message: str
    remedy: str = field(compare=False)


class NotRules(ConfigError):
    """The text is no rule file, PrometheusRule or dashboard, so there is nothing to check."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__([f"{path}: {problem}"])


PROMETHEUS_LOWEST = Version(2, 42)
USUAL_TARGET_LABELS: frozenset[str] = frozenset(
    {
        "job", "instance", "node", "cluster", "namespace", "pod", "container", "service", "endpoint", "prometheus",
        "region", "zone", "availability_zone", "environment", "env", "datacenter", "host", "hostname", "nodename",
        "tenant", "tenant_id", "team", "replica", "site", "rack", "app", "component", "deployment", "model", "pool",
    }
)  # fmt: skip
"""Labels that relabelling and service discovery commonly add; a metric may have them whatever its exporter says."""


@dataclass(frozen=True, slots=True)
class LintOptions:
    """
    What the files are held against.

    Attributes:
        only: Ids of the checks to run; empty: all.
        disabled: Ids of checks not to run.
        prometheus_version: Lowest release that must read the files.
        versions: Release per exporter; without one, a metric that any present release lacks is reported.
        retention_seconds: What Prometheus keeps (``--storage.tsdb.retention.time``).
        scrape_interval_seconds: Of the slowest job.
        metric_prefix: What vLLM's metric names begin with.
        custom_buckets: Name of a histogram → upper edges where vLLM's are changed.
        target_labels: Labels that discovery or relabelling may add to any series.
        external_labels: Names of Prometheus' external_labels; a rule must not set them.
        runbooks: File name → text of the local runbooks; None: not checked.
    """

    only: frozenset[str] = frozenset()
    disabled: frozenset[str] = frozenset()
    prometheus_version: Version = PROMETHEUS_LOWEST
    versions: Mapping[Exporter, Version] = field(default_factory=dict)
    retention_seconds: float = 15 * 86_400
    scrape_interval_seconds: float = 15.0
    metric_prefix: str = "vllm:"
    custom_buckets: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    target_labels: frozenset[str] = USUAL_TARGET_LABELS
    external_labels: frozenset[str] = frozenset({"cluster", "prometheus", "prometheus_replica", "__replica__"})
    runbooks: Mapping[str, str] | None = None

    def wants(self, check: str) -> bool:
        """Whether findings of this check are asked for."""
        return check not in self.disabled and (not self.only or check in self.only)
