"""
The text of a /metrics page as values: samples under the names they really have, and the types that are stated.

prometheus_client's parser renames counters that lack ``_total`` (DCGM, Envoy) to have it, and drops the type of what it
renames; so it is given the samples without their types, and the types are read here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from sre.metrics.types import Kind

_TYPE = re.compile(r"#[ \t]*TYPE[ \t]+([^ \t]+)[ \t]+([a-z]+)[ \t]*")
_KINDS = {kind.value: kind for kind in Kind}
_MARKUP = re.compile(r"\s*<(?:!doctype|html|head|body|\?xml)", re.IGNORECASE)
_PART_SUFFIXES = ("_bucket", "_count", "_sum", "_total", "_created")
_SHOWN = 80


class ExpositionError(ValueError):
    """The text is not what an exporter gives: a sentence with the line."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series and its value."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Exposition:
    """
    What one page exposes.

    Attributes:
        samples: Series by sample name.
        types: Kind by family name as stated, where one of the four is.
    """

    samples: Mapping[str, tuple[Series, ...]] = field(default_factory=dict)
    types: Mapping[str, Kind] = field(default_factory=dict)

    def kind(self, sample: str) -> Kind | None:
        """The stated kind of the family a sample belongs to; None: untyped."""
        if sample in self.types:
            return self.types[sample]
        for suffix in _PART_SUFFIXES:
            family = sample.removesuffix(suffix)
            if family != sample and family in self.types:
                return self.types[family]
        return None


MAX_PAGE_BYTES = 8 * 1024 * 1024
"""Longest /metrics page that is read: a full one of vLLM is about 0.1 MB per data-parallel rank."""


def parse_exposition(body: bytes) -> Exposition:
    """
    Read Prometheus' text format.

    Raises:
        ExpositionError: It is something else (a web page, JSON), broken anywhere, or holds no sample. Prometheus drops
            the whole scrape for one broken line, so nothing of such a text is worth having.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        number = body.count(b"\n", 0, error.start) + 1
        raise ExpositionError(f"line {number} is not UTF-8; is this an exporter's /metrics?") from None
    if _MARKUP.match(text):
        raise ExpositionError("the answer is a web page, not metrics; give the URL of /metrics itself")
    lines = text.split("\n")
    types: dict[str, Kind] = {}
    for line in lines:
        if line.startswith("#") and (match := _TYPE.fullmatch(line.rstrip("\r"))) and match[2] in _KINDS:
            types[match[1]] = _KINDS[match[2]]
    samples = _samples(lines)
    if not samples:
        raise ExpositionError("the answer holds no sample; is this an exporter's /metrics?")
    return Exposition({name: tuple(series) for name, series in samples.items()}, types)


def _samples(lines: Iterable[str]) -> dict[str, list[Series]]:
    data = [
        (number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")
    ]
    try:
        return _parsed(line for _, line in data)
    except _BROKEN:
        pass
    found: dict[str, list[Series]] = {}
    for number, line in data:
        try:
            for name, series in _parsed([line]).items():
                found.setdefault(name, []).extend(series)
        except _BROKEN as error:
            shown = line if len(line) <= _SHOWN else line[:_SHOWN] + "…"
            raise ExpositionError(
                f"line {number} is no sample: {shown!r}; Prometheus would drop the whole scrape"
            ) from error
    return found


_BROKEN = (ValueError, IndexError, KeyError, TypeError)
"""What prometheus_client's parser raises on text it does not expect."""


def _parsed(lines: Iterable[str]) -> dict[str, list[Series]]:
    found: dict[str, list[Series]] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            if not sample.name:
                raise ValueError("a sample without a name")
            found.setdefault(sample.name, []).append(Series(sample.labels, float(sample.value)))
    return found
