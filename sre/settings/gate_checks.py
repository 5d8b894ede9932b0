"""Contradictions within section ``gate`` that no single field can know."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from sre.settings.document import Location
from sre.settings.explain import nearest
from sre.settings.gate import CONDITIONS, OF_CLASS, SUBJECT, GateSettings


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
    for index, name in enumerate(gate.baseline.may_differ):
        if problem := _condition_problem(name):
            yield ("baseline", "may_differ", index), problem


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


def _condition_problem(name: str) -> str:
    if name in SUBJECT:
        return f"{name} is what is tested, so it may always differ; leave it out"
    # A class that is no longer in the mix is a condition, too: of the baseline.
    if name in CONDITIONS or (name.startswith(OF_CLASS) and name != OF_CLASS):
        return ""
    near = nearest(name, CONDITIONS)
    hint = f"did you mean {near}?" if near else f"conditions: {', '.join(CONDITIONS)}, {OF_CLASS}CLASS"
    return f'no condition "{name}"; {hint}'


def _no_class(name: str, classes: set[str]) -> str:
    return f'no class "{name}" in gate.load.mix; its classes: {", ".join(sorted(classes))}'
