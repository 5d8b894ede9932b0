"""Reading Grafana's JSON: panels wherever they stand, and queries as Prometheus gets them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

Json = Mapping[str, Any]


def panels(document: Json) -> Iterator[Json]:
    """Every panel that is no row, those of collapsed rows included."""
    for panel in document["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def queries(document: Json) -> Iterator[tuple[str, str]]:
    """Where it stands, and the expression: panels, annotations, variables with an expression of their own."""
    for panel in panels(document):
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for annotation in document["annotations"]["list"]:
        if "target" in annotation:
            yield annotation["name"], annotation["target"]["expr"]
    for variable in document["templating"]["list"]:
        if variable["type"] == "query":
            text = variable["query"]["query"]
            inner = re.fullmatch(r"query_result\((.*)\)|label_values\((.*), ?\w+\)", text)
            assert inner is not None, text
            yield variable["name"], inner[1] or inner[2]


def substituted(expression: str, values: Mapping[str, str] | None = None) -> str:
    """As Grafana sends it: ranges filled in, variables replaced; by default everything is chosen."""
    text = re.sub(r"\$__rate_interval|\$__range|\$__interval", "5m", expression)
    return re.sub(r"\$(\w+)", lambda match: (values or {}).get(match[1], ".*"), text)
