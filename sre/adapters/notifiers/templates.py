"""The user's templates: files to forms, every problem at once."""

from __future__ import annotations

from sre.errors import ConfigError
from sre.notify.forms import SMS_LIMITS
from sre.notify.renderer import ChannelTemplates
from sre.notify.samples import sms_problem
from sre.notify.templates import FORMS, MOST_CHARACTERS, Form, Template, parse
from sre.settings.base import expanded
from sre.settings.notify import ChannelSettings, Language, NotifySettings, TemplateSettings


def load_templates(settings: NotifySettings) -> ChannelTemplates:
    """
    Return every channel's own forms.

    Raises:
        ConfigError: With one sentence per problem: the place in the file, and what to write instead.
    """
    loader = _Loader()
    for form, path in _paths(settings.templates).items():  # also where no channel uses it: it must be good
        if path is not None:
            loader.template(path, form, f"notify.templates.{form}", settings.language)
    found = {
        channel.name: loader.of_channel(settings, channel, index) for index, channel in enumerate(settings.channels)
    }
    if loader.problems:
        raise ConfigError(list(dict.fromkeys(loader.problems)))
    return {name: templates for name, templates in found.items() if templates}


def _paths(templates: TemplateSettings) -> dict[Form, str | None]:
    return {"sms": templates.sms, "title": templates.title, "text": templates.text, "html": templates.html}


class _Loader:
    def __init__(self) -> None:
        self.problems: list[str] = []

    def of_channel(self, settings: NotifySettings, channel: ChannelSettings, index: int) -> dict[str, Template]:
        language = channel.language or settings.language
        found: dict[str, Template] = {}
        for form in FORMS:
            own, common = _paths(channel.template)[form], _paths(settings.templates)[form]
            if form == "sms" and channel.kind != "sms" and own is None:
                continue  # the common one need not suit the language of a channel that never uses it
            setting = f"notify.channels[{index}].template.{form}" if own else f"notify.templates.{form}"
            path = own or common
            template = None if path is None else self.template(path, form, setting, language)
            if template is not None:
                found[form] = template
        return found

    def template(self, path: str, form: Form, setting: str, language: Language) -> Template | None:
        text = self._read(path, setting)
        if text is None:
            return None
        template, problems = parse(text, form, f"{setting}: {path}", ucs2=language == "zh")
        self.problems += problems
        if template is not None and form == "sms":
            problem = sms_problem(template, language, SMS_LIMITS[language].whole, f"{setting}: {path}")
            if problem is not None:
                self.problems.append(problem)
                return None
        return template

    def _read(self, path: str, setting: str) -> str | None:
        try:
            with expanded(path).open("rb") as file:
                return file.read(4 * MOST_CHARACTERS + 4).decode("utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            self.problems.append(f"{setting}: {path}: {reason}; check path and permissions")
            return None
