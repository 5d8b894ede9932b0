"""What a metric is: name, type, unit, labels, since when and until when. The catalogue is made of these."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass


class Kind(enum.Enum):
    """Prometheus metric type."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


class Unit(enum.Enum):
    """Unit of a metric's value; of a histogram, of what it observes."""

    ONE = "1"
    """A plain number, an index, a count of something the name says."""
    STATE = "state"
    """0 or 1."""
    RATIO = "ratio"
    """0..1."""
    PERCENT = "percent"
    """0..100."""
    SECONDS = "seconds"
    MILLISECONDS = "milliseconds"
    MICROSECONDS = "microseconds"
    NANOSECONDS = "nanoseconds"
    TIMESTAMP_SECONDS = "timestamp_seconds"
    BYTES = "bytes"
    KIBIBYTES = "kibibytes"
    MEBIBYTES = "mebibytes"
    BYTES_PER_SECOND = "bytes_per_second"
    MEGABYTES_PER_SECOND = "megabytes_per_second"
    CELSIUS = "celsius"
    WATTS = "watts"
    JOULES = "joules"
    MILLIJOULES = "millijoules"
    HERTZ = "hertz"
    MEGAHERTZ = "megahertz"
    REQUESTS = "requests"
    TOKENS = "tokens"
    STEPS = "steps"
    OPERATIONS = "operations"
    PACKETS = "packets"
    SEGMENTS = "segments"
    FLOPS = "flops"


class Exporter(enum.Enum):
    """Who exposes a metric."""

    VLLM = "vllm"
    DCGM = "dcgm-exporter"
    NODE = "node_exporter"
    ENVOY = "envoy"
    SRE = "sre"
    PROMETHEUS = "prometheus"


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A release, compared by number: 0.8 < 0.11."""

    major: int
    minor: int
    patch: int = 0

    @classmethod
    def parse(cls, text: str) -> Version:
        """
        Read ``0.11``, ``v4.8.3`` or ``0.32.0``; what follows the third number (``.dev1``, ``-ubuntu``) does not count.

        Raises:
            ValueError: It is no version.
        """
        match = re.match(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?![\d])", text.strip())
        if match is None:
            raise ValueError(f"{text!r} is no version; write it like 0.32 or 4.8.3")
        return cls(int(match[1]), int(match[2]), int(match[3] or 0))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}" + (f".{self.patch}" if self.patch else "")


_RANGES: dict[Unit, tuple[float, float]] = {
    Unit.STATE: (0.0, 1.0),
    Unit.RATIO: (0.0, 1.0),
    Unit.PERCENT: (0.0, 100.0),
    Unit.CELSIUS: (-60.0, 150.0),
    Unit.WATTS: (0.0, 20_000.0),
}
"""What a gauge of the unit can show. Watts: the largest accelerator boards draw 2 to 3 kW."""


@dataclass(frozen=True, slots=True)
class Metric:
    """
    One metric family.

    Attributes:
        name: Family name; ``_total`` of a counter may be left out.
        labels: Label names, in the order in which values are given.
        buckets: Upper bounds of a histogram, +Inf left out; empty where ``token_buckets`` is set.
        token_buckets: The bounds are 1, 2, 5, 10 … up to the model's longest sequence.
        values: Values of the last label that exist from the start, at zero.
        bare: A counter that is exposed without ``_total`` (dcgm-exporter).
        rate_already: Typed counter, yet its value is already a rate: ``rate()`` of it is nonsense.
        since: First release that exposes it; None: older than all that we support.
        deprecated: First release in which it is deprecated (a successor exists beside it).
        removed: First release without it; None: still there.
        replaced_by: Sample name of the successor.
        optional: May be absent on a healthy exporter: feature off, hardware without it, not in the default CSV.
        untyped: The exporter states no type; ``kind`` says what the value is.
        hidden: First release that exposes it only on request (vLLM's ``--show-hidden-metrics-for-version``).
        optional_labels: Those of ``labels`` that a healthy exporter may leave out: older release, other setup.
        needs: What makes an optional metric appear: an option of the exporter, hardware.
        late: Has no series before the first event (a request, an error); absence says nothing then.
        plausible: Least and largest value that can be meant; what lies outside has another unit. See ``range``.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    token_buckets: bool = False
    values: tuple[str, ...] = ()
    unit: Unit = Unit.ONE
    exporter: Exporter = Exporter.VLLM
    bare: bool = False
    rate_already: bool = False
    since: Version | None = None
    deprecated: Version | None = None
    removed: Version | None = None
    replaced_by: str | None = None
    optional: bool = False
    untyped: bool = False
    hidden: Version | None = None
    optional_labels: tuple[str, ...] = ()
    needs: str = ""
    late: bool = False
    plausible: tuple[float, float] | None = None

    @property
    def required_labels(self) -> tuple[str, ...]:
        """Labels that every series of it has, whatever the release and the setup."""
        return tuple(label for label in self.labels if label not in self.optional_labels)

    @property
    def range(self) -> tuple[float, float] | None:
        """Least and largest value a gauge of this unit can have; None where any value can be right."""
        return self.plausible or (_RANGES.get(self.unit) if self.kind is Kind.GAUGE else None)

    @property
    def sample(self) -> str:
        """Name of the sample that carries the value (of a histogram: its count)."""
        if self.kind is Kind.COUNTER:
            return self.name if self.bare or self.name.endswith("_total") else self.name + "_total"
        return self.name + ("_count" if self.kind in (Kind.HISTOGRAM, Kind.SUMMARY) else "")

    @property
    def samples(self) -> tuple[str, ...]:
        """Every sample name of the family, ``_created`` left out."""
        if self.kind is Kind.HISTOGRAM:
            return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")
        if self.kind is Kind.SUMMARY:
            return (self.name, f"{self.name}_sum", f"{self.name}_count")
        return (self.sample,)

    def bounds(self, max_model_len: int) -> tuple[float, ...]:
        """Finite bucket bounds for a model whose longest sequence is ``max_model_len`` tokens."""
        return token_bounds(max_model_len) if self.token_buckets else self.buckets

    def exists_in(self, version: Version | None) -> bool:
        """Whether this release exposes it without being asked to; None stands for any release."""
        if version is None:
            return True
        gone = min((end for end in (self.hidden, self.removed) if end is not None), default=None)
        return (self.since is None or version >= self.since) and (gone is None or version < gone)


def token_bounds(longest: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 … not above ``longest``."""
    bounds: list[float] = []
    scale = 1
    while True:
        for mantissa in (1, 2, 5):
            if mantissa * scale > longest:
                return tuple(bounds)
            bounds.append(mantissa * scale)
        scale *= 10
