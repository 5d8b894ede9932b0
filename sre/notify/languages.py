"""
Every word of ours in a message, in each language.

What others said (a measurement's text, an alert's annotation, a provider's answer) is shown as it was said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from sre.actions import facts
from sre.notify import languages_alerts
from sre.settings.notify import Language

LANGUAGES: tuple[Language, ...] = get_args(Language)


@dataclass(frozen=True, slots=True)
class Words:
    """What a message is made of in one language. A field that is missing does not type-check."""

    language: Language
    events: Mapping[str, str]
    severities: Mapping[str, str]
    reasons: Mapping[str, str]
    """Named reasons as a person says them; one that is not here is shown as it is."""
    fact_names: Mapping[str, str]
    sentences: tuple[tuple[re.Pattern[str], str], ...]
    """
    Sentences of ours that other rooms write in English: pattern of the whole text, and the same with the pattern's
    groups. A group called ``reason`` is a named reason, one called ``sentence`` is a sentence itself.
    """
    what: str
    since: str
    done: str
    next: str
    runbook: str
    dashboard: str
    timeline: str
    details: str
    incident: str
    event: str
    severity: str
    scope: str
    reason: str
    rule: str
    value: str
    at: str
    links: str
    nothing_done: str
    told_late: str
    """With {moment}: the beginning was never told."""
    began: str
    """With {moment}: the same, in an SMS."""
    more: str
    """With {command}."""
    cut: str
    signed: str


EN = Words(
    language="en",
    events={
        "open": "OPEN",
        "escalate": "ESCALATED",
        "resolve": "RESOLVED",
        "acknowledge": "ACKNOWLEDGED",
        "blind": "BLIND",
        "digest": "DIGEST",
        "test": "TEST",
    },
    severities={"page": "page", "ticket": "ticket", "info": "info"},
    reasons={
        # Of digests; the others are names that rules, journal and metrics have, too.
        "storm": "too many messages",
        "quiet_hours_over": "quiet hours are over",
        "too_slow": "the channel is slow",
        "duty_failed": "a duty of the sender fails",
    },
    fact_names={},
    sentences=(),
    what="what",
    since="since",
    done="done automatically",
    next="next",
    runbook="runbook",
    dashboard="dashboard",
    timeline="timeline",
    details="details",
    incident="incident",
    event="event",
    severity="severity",
    scope="scope",
    reason="reason",
    rule="rule",
    value="value",
    at="at",
    links="links",
    nothing_done="nothing",
    told_late="This incident began and ended before a first message could be sent; it began {moment}:",
    began="began {moment}",
    more="More: {command}",
    cut="... (cut off)",
    signed="Sent by sre.",
)

ZH = Words(
    language="zh",
    events={
        "open": "触发",
        "escalate": "升级",
        "resolve": "恢复",
        "acknowledge": "已确认",
        "blind": "失明",
        "digest": "汇总",
        "test": "测试",
    },
    severities={"page": "紧急", "ticket": "一般", "info": "提示"},
    reasons={
        "hang": "引擎挂起",
        "engine_dead": "引擎退出",
        "gpu_memory": "显存不足",
        "gpu_temperature": "GPU过热",
        "failed_batches": "批次失败",
        "error_ratio": "错误率高",
        "rule": "自定义规则",
        "manual": "人工操作",
        "ramp": "逐步恢复",
        "latched": "锁定待处理",
        "blind": "信号缺失",
        "fault_left": "故障未撤销",
        "pipeline_silent": "监控链路静默",
        "locked_out": "推送均被拒绝",
        "alerts-unreadable": "告警无法解析",
        "alerts-refused": "告警被拒收",
        "alerts-left-out": "告警未列出",
        "alerts-not-stored": "告警无法存储",
        "over_limit": "超出限额",
        "record-damaged": "记录损坏",
        "tls-certificate": "证书无法更新",
        "storm": "消息过多",
        "quiet_hours_over": "静默结束",
        "too_slow": "通道太慢",
        "duty_failed": "发送任务失败",
        "unreadable": "消息损坏",
        "test": "测试",
        "unknown": "原因不明",
    },
    fact_names={
        facts.SEEN: "观测",
        facts.RULE: "规则",
        facts.VALUE: "数值",
        facts.SINCE: "开始时间",
        facts.DONE: "已自动执行",
        facts.NEXT: "下一步",
        facts.RUNBOOK: "处置手册",
        facts.DASHBOARD: "监控面板",
        facts.TIMELINE: "时间线",
        facts.POOL: "池",
        facts.IN_FLIGHT: "在途请求",
        facts.CONTEXTS: "请求现场",
        facts.MEANING: "含义",
        facts.OPENED_FOR: "触发原因",
        facts.INCIDENTS: "相关事件",
        facts.INSTEAD_OF: "代替通道",
        facts.ACKNOWLEDGE: "确认",
        facts.ALERTS: "告警数",
        facts.NOT_LISTED: "未列出的告警",
        facts.HEARD_LATE: "得知较晚",
        facts.CLOCK: "时钟",
        facts.MORE: "其余",
    },
    sentences=(
        (re.compile(r"(?P<name>\S+) tripped: (?P<reason>\S+)"), "{name} 熔断：{reason}"),
        (re.compile(r"(?P<name>\S+) needs a human: (?P<reason>\S+)"), "{name} 需要人工处理：{reason}"),
        (re.compile(r"(?P<name>\S+) serves again after (?P<seconds>\d+) s"), "{name} 在 {seconds} 秒后恢复服务"),
        (re.compile(r"(?P<sentence>.+); NOT contained: (?P<why>.+)"), "{sentence}；未能隔离：{why}"),
        (
            re.compile(r"(?P<name>\S+) left the configuration; the incident is closed unproven"),
            "{name} 已从配置中移除；事件在未验证恢复的情况下关闭",
        ),
        (
            re.compile(r"fault (?P<name>\S+) is not proven reverted \((?P<state>\S+)\)"),
            "故障注入 {name} 未证实已撤销（{state}）",
        ),
        (re.compile(r"not seen: (?P<names>.+)"), "未观测到：{names}"),
        (re.compile(r"not seen"), "未观测到"),
        (
            re.compile(r"the guard's state can be written again; what goes on is told anew"),
            "守护进程的状态已可写入；仍在持续的问题将重新通知",
        ),
        (re.compile(r"seen again: (?P<names>.+)"), "已重新观测到：{names}"),
        (re.compile(r"seen again, or not looked for any more: (?P<names>.+)"), "已重新观测到或不再监测：{names}"),
        (re.compile(r"new requests are refused, running streams go on"), "拒绝新请求，进行中的流继续"),
        (re.compile(r"nothing: observe only"), "无：仅观察模式"),
        (
            re.compile(r"a fault here would go unnoticed until this is seen again"),
            "在重新观测到之前，这里的故障不会被发现",
        ),
        (re.compile(r"find the cause, then: (?P<command>.+)"), "先查明原因，再执行：{command}"),
        (
            re.compile(r"not acknowledged for (?P<minutes>\d+) min \(level (?P<level>\d+)\): (?P<sentence>.+)"),
            "{minutes} 分钟无人确认（第 {level} 级）：{sentence}",
        ),
        (
            re.compile(r"not acknowledged for (?P<seconds>\d+) s \(level (?P<level>\d+)\): (?P<sentence>.+)"),
            "{seconds} 秒无人确认（第 {level} 级）：{sentence}",
        ),
        (re.compile(r"acknowledged by (?P<by>[^:]+): (?P<note>.+)"), "已由 {by} 确认：{note}"),
        (re.compile(r"acknowledged by (?P<by>[^:]+)"), "已由 {by} 确认"),
        (
            re.compile(
                r"(?P<all>\d+) messages in (?P<seconds>\d+) s: (?P<begun>\d+) begun, (?P<escalated>\d+) escalated,"
                r" (?P<ended>\d+) ended"
            ),
            "{seconds} 秒内 {all} 条消息：触发 {begun}，升级 {escalated}，恢复 {ended}",
        ),
        (re.compile(r"(?P<count>\d+) incidents"), "{count} 个事件"),
        (re.compile(r"all incidents of (?P<digest>\S+) are over"), "{digest} 的所有事件均已恢复"),
        *languages_alerts.SENTENCES,
        (re.compile(r"(?P<duty>.+) fails again and again: (?P<error>.+)"), "{duty} 反复失败：{error}"),
        (re.compile(r"(?P<duty>.+) works again"), "{duty} 已恢复正常"),
        (re.compile(r"read the guard's log"), "查看守护进程日志"),
        (
            re.compile(r"a stored message is damaged and cannot be read; look with: (?P<command>.+)"),
            "一条已存储的消息损坏，无法读取；查看：{command}",
        ),
        (re.compile(r"outbox"), "发件箱"),
        (re.compile(r"A test message; nothing is wrong\."), "这是测试消息，一切正常。"),
        (re.compile(r"engine (?P<name>\S+) \(pool (?P<pool>\S+)\)"), "引擎{name}(池{pool})"),
        (re.compile(r"engine (?P<name>\S+)"), "引擎{name}"),
        (re.compile(r"pool (?P<name>\S+)"), "池{name}"),
    ),
    what="事件",
    since="开始时间",
    done="已自动执行",
    next="下一步",
    runbook="处置手册",
    dashboard="监控面板",
    timeline="时间线",
    details="详情",
    incident="事件编号",
    event="类型",
    severity="级别",
    scope="范围",
    reason="原因",
    rule="规则",
    value="数值",
    at="时间",
    links="链接",
    nothing_done="无",
    told_late="该事件在首条通知发出之前已经开始并结束；开始于 {moment}：",
    began="始于{moment}",
    more="更多：{command}",
    cut="……（已截断）",
    signed="由 sre 发送。",
)

WORDS: Mapping[Language, Words] = {"en": EN, "zh": ZH}


def said(words: Words, sentence: str) -> str:
    """Return ``sentence`` in the language of ``words`` if it is one of ours, else as it is."""
    for pattern, replacement in words.sentences:
        match = pattern.fullmatch(sentence)
        if match is not None:
            groups = match.groupdict()
            if "reason" in groups:
                groups["reason"] = words.reasons.get(groups["reason"], groups["reason"])
            if "sentence" in groups:
                groups["sentence"] = said(words, groups["sentence"])
            return replacement.format(**groups)
    return sentence
