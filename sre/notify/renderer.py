"""The forms of all channels, as the configuration sets them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from sre.actions.types import Message
from sre.notify.forms import Rendered, Style, render
from sre.notify.links import NOWHERE, Links
from sre.notify.templates import Template
from sre.settings.notify import ChannelSettings, NotifySettings

ChannelTemplates = Mapping[str, Mapping[str, Template]]
"""Channel → form → template. A channel or form that is not here has sre's own form."""


class Render(Protocol):
    """Renders a message for a channel."""

    def __call__(self, message: Message, channel: ChannelSettings, opened: Message | None = None) -> Rendered: ...


class Renderer:
    """Renders in each channel's language, with its templates; see ``sre.notify.forms.render``."""

    def __init__(
        self, settings: NotifySettings, templates: ChannelTemplates | None = None, links: Links = NOWHERE
    ) -> None:
        found = templates or {}
        self._language = settings.language
        self._links = links
        self._styles = {c.name: self._style(c, found.get(c.name, {})) for c in settings.channels}

    def _style(self, channel: ChannelSettings, templates: Mapping[str, Template]) -> Style:
        return Style(channel.language or self._language, self._links, templates)

    def __call__(self, message: Message, channel: ChannelSettings, opened: Message | None = None) -> Rendered:
        style = self._styles.get(channel.name) or self._style(channel, {})
        return render(message, channel.kind, opened, style)
