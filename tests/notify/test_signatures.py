"""Signatures: the examples in the providers' own documents, and what changes one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sre.notify.signatures import aliyun_authorization, canonical_query, tencent_authorization

NO_BODY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def aliyun(secret: str = "YourAccessKeySecret", **changed: str) -> str:
    headers = {
        "host": "ecs.cn-shanghai.aliyuncs.com",
        "x-acs-action": "RunInstances",
        "x-acs-content-sha256": NO_BODY,
        "x-acs-date": "2023-10-26T10:22:32Z",
        "x-acs-signature-nonce": "3156853299f313e23d1673dc12e1703d",
        "x-acs-version": "2014-05-26",
        **changed,
    }
    image = "win2019_1809_x64_dtc_zh-cn_40G_alibase_20230811.vhd"
    query = canonical_query({"RegionId": "cn-shanghai", "ImageId": image})
    return aliyun_authorization(key_id="YourAccessKeyId", secret=secret, query=query, headers=headers)


def test_the_example_of_aliyuns_document() -> None:
    assert aliyun() == (
        "ACS3-HMAC-SHA256 Credential=YourAccessKeyId,SignedHeaders=host;x-acs-action;x-acs-content-sha256;x-acs-date;"
        "x-acs-signature-nonce;x-acs-version,"
        "Signature=06563a9e1b43f5dfe96b81484da74bceab24a1d853912eee15083a6f0f3283c0"
    )
    assert aliyun(secret="another") != aliyun()
    assert aliyun(host="another") != aliyun()


def tencent(body: bytes) -> str:
    return tencent_authorization(
        secret_id="AKIDz8krbsJ5yKBZQpn74WFkmLPx3EXAMPLE",
        secret_key="Gu5t9xGARNpq86cd98joQYCN3EXAMPLE",
        service="cvm",
        host="cvm.tencentcloudapi.com",
        content_type="application/json; charset=utf-8",
        timestamp=1551113065,
        body=body,
    )


def test_the_example_of_tencents_document() -> None:
    body = rb'{"Limit": 1, "Filters": [{"Values": ["\u672a\u547d\u540d"], "Name": "instance-name"}]}'
    assert tencent(body) == (
        "TC3-HMAC-SHA256 Credential=AKIDz8krbsJ5yKBZQpn74WFkmLPx3EXAMPLE/2019-02-25/cvm/tc3_request,"
        " SignedHeaders=content-type;host,"
        " Signature=72e494ea809ad7a8c8f7a4507b9bddcbaa8e581f516e8da2f66e2c5a96525168"
    )
    assert tencent(body + b" ") != tencent(body)


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=5))
def test_a_query_is_encoded_as_rfc_3986_says(parameters: dict[str, str]) -> None:
    query = canonical_query(parameters)
    allowed = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~%=&")
    assert set(query) <= allowed
    assert "+" not in query
