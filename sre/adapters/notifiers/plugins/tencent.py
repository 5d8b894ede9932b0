"""
SMS by Tencent Cloud: ``tencentsms://SECRET_ID:SECRET_KEY@SDK_APP_ID/TEMPLATE_ID/PHONE?sign=SIGNATURE``.

The template's variables {1}, {2} … are severity, scope, rule and id, or what ``?params=piece,…`` says.
"""

from __future__ import annotations

import json
import time
from typing import Any

from sre.adapters.notifiers.handover import DESK
from sre.adapters.notifiers.plugins.template_sms import TemplateSms
from sre.notify.answers import tencent_cause
from sre.notify.outcomes import Cause
from sre.notify.signatures import tencent_authorization

CONTENT_TYPE = "application/json; charset=utf-8"


class NotifyTencentSms(TemplateSms):
    """SendSms, version 2021-01-11, signed with TC3-HMAC-SHA256."""

    service_name = "Tencent Cloud SMS"
    service_url = "https://console.cloud.tencent.com/smsv2"
    secure_protocol = "tencentsms"
    templates = ("{schema}://{key_id}:{secret}@{app}/{template}/{targets}",)
    region_name = "ap-guangzhou"

    def example(self) -> str:
        return "tencentsms://SECRET_ID:SECRET_KEY@SDK_APP_ID/TEMPLATE_ID/PHONE?sign=SIGNATURE"

    def send(self, body: str, title: str = "", notify_type: Any = None, **kwargs: Any) -> bool:
        host = self.endpoint or "sms.tencentcloudapi.com"
        now = int(time.time())
        call = {
            "PhoneNumberSet": list(self.targets),
            "SmsSdkAppId": self.place[0],
            "TemplateId": self.place[1],
            "SignName": self.sign,
            "TemplateParamSet": list(self.values().values()),
            "SessionContext": DESK.task.key[:500],
        }
        raw = json.dumps(call).encode()
        authorization = tencent_authorization(
            secret_id=self.key_id,
            secret_key=self.secret,
            service="sms",
            host=host,
            content_type=CONTENT_TYPE,
            timestamp=now,
            body=raw,
        )
        headers = {
            "Host": host,
            "Content-Type": CONTENT_TYPE,
            "Authorization": authorization,
            "X-TC-Action": "SendSms",
            "X-TC-Version": "2021-01-11",
            "X-TC-Timestamp": str(now),
            "X-TC-Region": self.region,
        }
        answer = self.post(f"https://{host}/", raw, headers)
        return answer is not None and self._accepted(answer)

    def _accepted(self, answer: Any) -> bool:
        """Read the answer: an error of the call, or a status for each number."""
        response = answer.get("Response")
        response = response if isinstance(response, dict) else {}
        error = response.get("Error")
        statuses = response.get("SendStatusSet")
        found = [error] if isinstance(error, dict) else statuses if isinstance(statuses, list) else []
        if not found:
            return self.refuse(
                Cause.OUTCOME_UNKNOWN, "no status", "an answer that is not Tencent's; it may have arrived"
            )
        for one in found:
            code = str(one.get("Code", "none")) if isinstance(one, dict) else "none"
            cause = tencent_cause(code)
            if cause is not None:
                return self.refuse(cause, code, one.get("Message", "") if isinstance(one, dict) else "")
        return True

    @staticmethod
    def parse_url(url: str) -> dict[str, Any] | None:
        return NotifyTencentSms._parsed(url, places=2)
