"""Contradictions within section ``gate`` that no single field can know."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from sre.settings.document import Location
from sre.settings.gate import GateSettings


def errors(gate: GateSettings) -> Iterator[tuple[Location, str]]:
    """Where within ``gate``, and the sentence."""
    if gate.target.url is not None and (problem := url_problem(gate.target.url)):
        yield ("target", "url"), problem
    for index, page in enumerate(gate.target.metrics_urls):
        if problem := url_problem(page):
            yield ("target", "metrics_urls", index), problem
    names = [policy.name for policy in gate.long_tail.policies]
    for index, policy in enumerate(gate.long_tail.policies):
        if problem := url_problem(policy.url):
            yield ("long_tail", "policies", index, "url"), problem
        if policy.name in names[:index]:
            yield ("long_tail", "policies", index, "name"), f'two policies are named "{policy.name}"; names must differ'
    classes = {kind.name for kind in gate.load.mix} | {"all"}
    for index, objective in enumerate(gate.objectives):
        if objective.request_class is not None and objective.request_class not in classes:
            yield ("objectives", index, "request_class"), _no_class(objective.request_class, classes)
    for index, cell in enumerate(gate.baseline.cells):
        if cell.request_class is not None and cell.request_class not in classes:
            yield ("baseline", "cells", index, "request_class"), _no_class(cell.request_class, classes)


def url_problem(url: str) -> str | None:
    """Why ``url`` is no base URL; None: it is one. A path is fine: a gateway may serve several servers."""
    remedy = "write http://host:port"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return f"is not a URL; {remedy}"
    if parts.username is not None or parts.password is not None:
        return "a secret is never written here; remove user and password, and write api_key: env:NAME"
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0 or parts.query or parts.fragment:
        return f"is not a base URL; {remedy}"
    return None


def _no_class(name: str, classes: set[str]) -> str:
    return f'no class "{name}" in gate.load.mix; its classes: {", ".join(sorted(classes))}'
