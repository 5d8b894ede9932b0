"""
SMS by Aliyun: ``alisms://KEY_ID:SECRET@TEMPLATE_CODE/PHONE?sign=SIGNATURE``.

The template's variables are ``severity``, ``scope``, ``rule`` and ``id``, or what ``?params=name:piece,…`` says.
Numbers with a country code other than 86 need ``?endpoint=`` of the region that sends abroad.
"""

from __future__ import annotations

import json
import time
import uuid
from datetime import UTC, datetime
from typing import Any

from sre.adapters.notifiers.handover import DESK
from sre.adapters.notifiers.plugins.endpoint import refused
from sre.adapters.notifiers.plugins.template_sms import TemplateSms
from sre.notify.answers import aliyun_cause
from sre.notify.signatures import aliyun_authorization, canonical_query

NO_BODY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


class NotifyAliyunSms(TemplateSms):
    """SendSms, version 2017-05-25, signed with ACS3-HMAC-SHA256."""

    service_name = "Aliyun SMS"
    service_url = "https://dysms.console.aliyun.com/"
    secure_protocol = "alisms"
    templates = ("{schema}://{key_id}:{secret}@{template}/{targets}",)
    region_name = "cn-hangzhou"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not self.sign:
            raise refused(self.logger, f"the URL names no signature; write {self.example()}")

    def example(self) -> str:
        return "alisms://KEY_ID:SECRET@TEMPLATE_CODE/PHONE?sign=SIGNATURE"

    def send(self, body: str, title: str = "", notify_type: Any = None, **kwargs: Any) -> bool:
        host = self.endpoint or "dysmsapi.aliyuncs.com"
        query = canonical_query(
            {
                "PhoneNumbers": ",".join(_number(target) for target in self.targets),
                "SignName": self.sign,
                "TemplateCode": self.place[0],
                "TemplateParam": json.dumps(self.values(), ensure_ascii=False),
                "OutId": DESK.task.key[:255] or "sre",
                "RegionId": self.region,
            }
        )
        headers = {
            "host": host,
            "x-acs-action": "SendSms",
            "x-acs-version": "2017-05-25",
            "x-acs-date": datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "x-acs-signature-nonce": uuid.uuid4().hex,
            "x-acs-content-sha256": NO_BODY_SHA256,
        }
        headers["Authorization"] = aliyun_authorization(
            key_id=self.key_id, secret=self.secret, query=query, headers=headers
        )
        answer = self.post(f"https://{host}/?{query}", b"", headers)
        if answer is None:
            return False
        code = str(answer.get("Code", "none"))
        cause = aliyun_cause(code)
        return cause is None or self.refuse(cause, code, answer.get("Message", ""))

    @staticmethod
    def parse_url(url: str) -> dict[str, Any] | None:
        return NotifyAliyunSms._parsed(url, places=1)


def _number(phone: str) -> str:
    """Return +8613… as 13…, others without the plus sign."""
    return phone.removeprefix("+86") if phone.startswith("+86") else phone.removeprefix("+")
