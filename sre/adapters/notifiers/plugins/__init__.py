"""
Plugins for Apprise, and which of Apprise's own is needed for a scheme.

Apprise imports all its 185 plugins for the first URL it sees, a third of a second of a core for each message. A
scheme that is known here gets its one plugin; any other gets them all.
"""

from __future__ import annotations

import importlib
from typing import Any

from apprise import Apprise, AppriseAsset
from apprise.exception import AppriseImproperlyConfigured
from apprise.manager_plugins import NotificationManager

OURS = {
    "mailto": "sre.adapters.notifiers.plugins.mail:NotifyMail",
    "mailtos": "sre.adapters.notifiers.plugins.mail:NotifyMail",
    "pagerduty": "sre.adapters.notifiers.plugins.pagerduty:NotifyPager",
    "dingtalk": "sre.adapters.notifiers.plugins.dingtalk:NotifyDingTalkSigned",
    "alisms": "sre.adapters.notifiers.plugins.aliyun:NotifyAliyunSms",
    "tencentsms": "sre.adapters.notifiers.plugins.tencent:NotifyTencentSms",
}

APPRISE = {
    "twilio": "apprise.plugins.twilio:NotifyTwilio",
    "sns": "apprise.plugins.sns:NotifySNS",
    "slack": "apprise.plugins.slack:NotifySlack",
    "feishu": "apprise.plugins.feishu:NotifyFeishu",
    "lark": "apprise.plugins.lark:NotifyLark",
    "wecombot": "apprise.plugins.wecombot:NotifyWeComBot",
    "json": "apprise.plugins.custom_json:NotifyJSON",
    "jsons": "apprise.plugins.custom_json:NotifyJSON",
    "form": "apprise.plugins.custom_form:NotifyForm",
    "forms": "apprise.plugins.custom_form:NotifyForm",
    "xml": "apprise.plugins.custom_xml:NotifyXML",
    "xmls": "apprise.plugins.custom_xml:NotifyXML",
}


def service_of(url: str, scheme: str, asset: AppriseAsset) -> Any | None:
    """Return Apprise's service for ``url``; None, and a warning in its log, for a URL that cannot be used."""
    place = OURS.get(scheme) or APPRISE.get(scheme)
    if place is None:
        return Apprise.instantiate(url, asset=asset)
    module, _, name = place.partition(":")
    plugin = getattr(importlib.import_module(module), name)
    arguments = plugin.parse_url(url.replace("/#", "/%23"))
    if not arguments:
        return None
    try:
        return plugin(**arguments, asset=asset)
    except AppriseImproperlyConfigured:
        return None  # it is in the log


def is_known(scheme: str) -> bool:
    """Whether there is a service of this scheme; slow for one that is not known here."""
    return scheme in OURS or scheme in APPRISE or scheme in NotificationManager()
