"""A setting that nothing reads promises what does not happen."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

import sre
from sre.settings.models import Root

PACKAGE = Path(sre.__file__).parent


def models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from models_in(part)


def leaves(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        inner = list(models_in(field.annotation))
        if not inner:
            yield model.__name__, name
        for one in inner:
            yield from leaves(one)


@pytest.fixture(scope="module")
def attributes_read() -> frozenset[str]:
    """Every ``.name`` in the package outside the settings."""
    files = [file for file in PACKAGE.rglob("*.py") if PACKAGE / "settings" not in file.parents]
    return frozenset(name for file in files for name in re.findall(r"\.([a-z][a-z0-9_]*)\b", file.read_text()))


@pytest.mark.parametrize(("section", "name"), sorted(set(leaves(Root))))
def test_every_setting_is_read(section: str, name: str, attributes_read: frozenset[str]) -> None:
    assert name in attributes_read, f"{section}.{name}: nothing reads it; use it or remove it"


def test_a_setting_that_nothing_reads_is_found(attributes_read: frozenset[str]) -> None:
    assert "tea_break_seconds" not in attributes_read
    assert ("NotifySettings", "max_attempts") in set(leaves(Root))
    assert ("RuleSettings", "threshold") in set(leaves(Root))
