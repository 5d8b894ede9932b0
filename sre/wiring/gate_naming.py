"""Where a setting was given as an option, a message names the option."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sre.errors import ConfigError, DependencyError

URL = "gate.target.url"
EITHER = f"--url, or {URL}"
"""As messages say it that do not know which was given."""


def named(sentence: str, given: Mapping[str, str]) -> str:
    """``sentence`` with every setting in ``given`` (``gate.target.url`` → ``--url``) called by its option."""
    if URL in given:
        sentence = sentence.replace(EITHER, URL)
    for setting, option in given.items():
        sentence = sentence.replace(setting, option)
    return sentence


@contextmanager
def naming_options(given: Mapping[str, str], against: str | None = None) -> Iterator[None]:
    """
    Errors out of the block name options instead of settings.

    Args:
        against: URL of the other side of a comparison: of it, ``--against`` is said.
    """
    try:
        yield
    except DependencyError as error:
        other = against is not None and error.system == f"target {against}"
        names = {**given, URL: "--against"} if other else given
        problem = str(error).removeprefix(f"{error.system}: ")
        if (told := named(problem, names)) == problem:
            raise
        raise type(error)(error.system, told, retryable=error.retryable) from error
    except ConfigError as error:
        raise ConfigError([named(one, given) for one in error.problems]) from error
