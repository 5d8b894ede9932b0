"""The JSON Schema covers every setting and describes it."""

from __future__ import annotations

from sre.settings.models import Root
from sre.settings.schema import json_schema


def test_schema_names_every_section_and_refuses_unknown_keys() -> None:
    schema = json_schema()
    assert set(schema["properties"]) == set(Root.model_fields)
    assert schema["additionalProperties"] is False
    for definition in schema["$defs"].values():
        assert definition["additionalProperties"] is False


def test_descriptions_come_from_the_docstrings() -> None:
    hang = json_schema()["$defs"]["HangSettings"]["properties"]["hang_after_seconds"]
    assert hang["description"].startswith("No step for this long")
    assert hang["default"] == 3.0
