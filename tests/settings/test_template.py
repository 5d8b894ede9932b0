"""What sre config init writes is valid, says the defaults truly, and survives being uncommented."""

from __future__ import annotations

import re

import pytest
import yaml

from sre.settings.load import parse_settings
from sre.settings.models import Root
from sre.settings.notify import EscalationSettings, QuietHoursSettings
from sre.settings.template import EngineKind, template

KINDS: tuple[EngineKind, ...] = ("sim", "vllm", "external")
OPTIONAL_WITHOUT_DEFAULT = {"python", "args", "env", "api_key", "rate_limit_requests_per_second", "channels"}
RELEASES = {"vllm_version", "dcgm_exporter_version"}
"""Keys whose commented line is an example, not the default; so are the releases in ``monitoring``."""


def uncommented(text: str) -> str:
    """The template with every commented setting made active; prose comments stay."""
    return re.sub(r"^(\s*)# (?=\s*(?:- \{|[a-z_]+:( |$)))", r"\1", text, flags=re.MULTILINE)


@pytest.mark.parametrize("kind", KINDS)
def test_template_is_valid_and_its_first_engine_is_of_the_kind(kind: EngineKind) -> None:
    root = parse_settings(template(kind).encode())
    assert [engine.kind for engine in root.stack.engines] == [kind]


def test_template_of_the_simulator_changes_no_default() -> None:
    assert parse_settings(template("sim").encode()) == Root()


@pytest.mark.parametrize("kind", KINDS)
def test_uncommented_template_is_valid_and_its_values_are_the_defaults(kind: EngineKind) -> None:
    text = uncommented(template(kind))
    assert "# - {name: mail" not in text
    root = parse_settings(text.encode())
    plain = parse_settings(template(kind).encode())
    assert root.guard == plain.guard
    assert root.chaos == plain.chaos
    assert root.gate.model_copy(update={"target": plain.gate.target, "capacity": plain.gate.capacity}) == plain.gate
    assert root.monitoring.model_copy(update=dict.fromkeys(RELEASES)) == plain.monitoring
    assert root.stack.gateway.model_copy(update={"rate_limit_requests_per_second": None}) == plain.stack.gateway
    engine, plain_engine = root.stack.engines[0].model_dump(), plain.stack.engines[0].model_dump()
    assert {k: v for k, v in engine.items() if k not in OPTIONAL_WITHOUT_DEFAULT} == {
        k: v for k, v in plain_engine.items() if k not in OPTIONAL_WITHOUT_DEFAULT
    }
    assert [channel.kind for channel in root.notify.channels] == ["email", "sms", "pagerduty"]
    assert root.notify.storm == plain.notify.storm
    assert root.notify.quiet_hours == QuietHoursSettings()
    assert root.notify.escalation == EscalationSettings(channels=("pager",))


def test_uncommenting_reaches_the_hidden_settings() -> None:
    active = yaml.safe_load(uncommented(template("sim")))
    assert "rules" in active["guard"]
    assert "sim" in active["stack"]["engines"][0]
