"""What every settings model shares: frozen, unknown keys refused, secrets by reference."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

SECRET_REFERENCE = re.compile(r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$")


class Settings(BaseModel):
    """Base of all sections."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


def _reference_only(value: str) -> str:
    if not SECRET_REFERENCE.match(value):
        raise ValueError("a secret is never written here; write env:NAME or file:/path")
    return value


SecretRef = Annotated[str, AfterValidator(_reference_only)]
"""A reference to a secret: ``env:NAME`` or ``file:/path``. Resolved only where it is used; never printed resolved."""
