"""What every settings model shares: frozen, unknown keys refused, secrets by reference."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo

SECRET_REFERENCE = re.compile(r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$")


class Settings(BaseModel):
    """Base of all sections."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


def folder_of_file(info: ValidationInfo) -> str | None:
    """Absolute folder of the file that is read; None where settings come from elsewhere."""
    folder = (info.context or {}).get("folder")
    return folder if isinstance(folder, str) else None


def expanded(path: str | Path) -> Path:
    """``path`` with ``~`` as the home folder. That of a user who is not here stays as it is, and is not found."""
    return Path(os.path.expanduser(path))


def from_folder(path: str, folder: str) -> str:
    """``path`` as a file in ``folder`` means it: ``~`` is the home folder, a relative path begins at ``folder``."""
    return os.path.join(folder, expanded(path))


def reference_from_folder(reference: str, folder: str) -> str:
    """As ``from_folder``, for the path of ``file:PATH``; ``env:NAME`` stays."""
    kind, _, path = reference.partition(":")
    return f"file:{from_folder(path, folder)}" if kind == "file" else reference


def _reference(value: str, info: ValidationInfo) -> str:
    if not SECRET_REFERENCE.match(value):
        raise ValueError("a secret is never written here; write env:NAME or file:/path")
    folder = folder_of_file(info)
    return value if folder is None else reference_from_folder(value, folder)


def _file(value: str, info: ValidationInfo) -> str:
    folder = folder_of_file(info)
    return value if folder is None else from_folder(value, folder)


def _program(value: str, info: ValidationInfo) -> str:
    return _file(value, info) if "/" in value or value.startswith("~") else value


SecretRef = Annotated[str, AfterValidator(_reference)]
"""A reference to a secret: ``env:NAME`` or ``file:/path``. Resolved only where it is used; never printed resolved."""
FilePath = Annotated[str, AfterValidator(_file)]
"""A file or folder of this machine: absolute once it was read from a file, whatever the current folder."""
ProgramPath = Annotated[str, AfterValidator(_program)]
"""A program: as ``FilePath``, but a name without a slash is looked for on $PATH."""
