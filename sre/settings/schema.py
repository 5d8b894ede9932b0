"""JSON Schema of sre.yaml, for editors."""

from __future__ import annotations

from typing import Any

from sre.settings.models import Root


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of what may be written in sre.yaml; descriptions are the fields' docstrings."""
    schema = Root.model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "sre.yaml"}
