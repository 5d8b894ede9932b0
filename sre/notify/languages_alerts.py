"""What alerts say to people, in Chinese: patterns of the sentences in ``alert_messages`` and what they are said as."""

from __future__ import annotations

import re

_TIME = r"[\d.]+ (?:s|min|h)"
_GOES_ON = r"(?P<sentence>\d+ go on|all are over)"

SENTENCES: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(rf"no heartbeat from Prometheus and Alertmanager for (?P<time>{_TIME})"),
        "已有 {time} 未收到 Prometheus 和 Alertmanager 的心跳",
    ),
    (
        re.compile(r"alerts may fire and nobody is told; the guard's own rules go on"),
        "告警可能已触发但无人收到；守护进程自身的规则仍在运行",
    ),
    (re.compile(r"alerts may fire and nobody is told"), "告警可能已触发但无人收到"),
    (
        re.compile(r"see whether Prometheus and Alertmanager run, and whether Alertmanager reaches this webhook"),
        "检查 Prometheus 和 Alertmanager 是否在运行，以及 Alertmanager 能否访问此 webhook",
    ),
    (re.compile(rf"(?P<value>{_TIME}), limit (?P<limit>{_TIME})"), "{value}，上限 {limit}"),
    (
        re.compile(r"a notice: no end of it is told; where it opened something, close it by hand"),
        "仅为通知：不会发送恢复消息；若已打开事件，请手动关闭",
    ),
    (
        re.compile(r"(?P<count>\d+) posts with wrong or no credentials meanwhile"),
        "其间有 {count} 次请求凭据错误或缺失",
    ),
    (
        re.compile(rf"(?P<count>\d+) posts with wrong or no credentials in (?P<time>{_TIME}), and none that fit"),
        "{time} 内 {count} 次请求凭据错误或缺失，且没有一次有效",
    ),
    (
        re.compile(r"if Alertmanager sent them, its alerts reach nobody through this webhook"),
        "若由 Alertmanager 发送，其告警无法经此 webhook 通知任何人",
    ),
    (
        re.compile(r"compare the credentials that Alertmanager sends with those of section webhook in sre\.yaml"),
        "核对 Alertmanager 发送的凭据与 sre.yaml 中 webhook 一节的凭据",
    ),
    (re.compile(r"a post with good credentials came again"), "已收到凭据有效的请求"),
    (re.compile(r"the heartbeat is heard again"), "心跳已恢复"),
    (re.compile(r"the heartbeat is not watched any more"), "不再监视心跳"),
    (re.compile(r"monitoring pipeline"), "监控链路"),
    (re.compile(rf"(?P<name>\S+) ended after (?P<time>{_TIME})"), "{name} 已恢复，历时 {time}"),
    (re.compile(r"(?P<name>\S+) fires"), "{name} 触发"),
    (
        re.compile(r"not heard of for (?P<hours>\d+) h; taken for over, unproven"),
        "已有 {hours} 小时没有消息；视为结束，未经证实",
    ),
    (re.compile(r"nothing: the alert has no action"), "无：该告警没有自动动作"),
    (re.compile(r"nothing: no trip of (?P<target>\S+) \((?P<why>.+)\)"), "无：未熔断 {target}（{why}）"),
    (
        re.compile(r"the trip of (?P<target>\S+) was carried out; no incident of it is open now"),
        "{target} 已熔断；该熔断的事件现已不在进行中",
    ),
    (
        re.compile(r"nothing: the trip that was to be done cannot be read \((?P<why>.+)\)"),
        "无：待执行的熔断记录无法读取（{why}）",
    ),
    (re.compile(r"see the incident"), "见该事件"),
    (
        re.compile(rf"(?P<sentence>.+) \(began (?P<time>{_TIME}) ago, heard only now\)"),
        "{sentence}（{time} 前开始，刚刚得知）",
    ),
    (re.compile(rf"(?P<time>{_TIME}) after it began"), "开始 {time} 之后"),
    (re.compile(rf"begins (?P<time>{_TIME}) ahead of this machine's clock"), "开始时间比本机时钟早 {time}"),
    (
        re.compile(r"still fires though (?P<id>\S+) is over: (?P<sentence>.+)"),
        "{id} 已结束但告警仍在触发：{sentence}",
    ),
    (re.compile(r"(?P<count>\d+) so far, joined by (?P<key>.+)"), "目前 {count} 个，合并依据 {key}"),
    (
        re.compile(r"(?P<count>\d+) more in this notification \(max_alerts at Alertmanager\)"),
        "该通知中另有 {count} 个（Alertmanager 的 max_alerts）",
    ),
    (
        re.compile(
            r"its limit of (?P<limit>\d+) per hour is reached; further alerts are told together, within the hour"
        ),
        "已达每小时 {limit} 次上限；后续告警将在一小时内合并通知",
    ),
    (
        re.compile(r"raise max_per_hour of the route, or silence what storms"),
        "调高该路由的 max_per_hour，或静默告警来源",
    ),
    (
        re.compile(
            rf"(?P<count>\d+) alerts were over the limit per hour and are told now \({_GOES_ON}\): (?P<names>.+)"
        ),
        "{count} 个告警曾超出每小时上限，现合并通知（{sentence}）：{names}",
    ),
    (
        re.compile(rf"(?P<count>\d+) that the limit of the route kept back; {_GOES_ON}"),
        "因路由上限暂缓 {count} 个；{sentence}",
    ),
    (re.compile(r"(?P<count>\d+) go on"), "{count} 个仍在持续"),
    (re.compile(r"all are over"), "均已结束"),
    (re.compile(r"(?P<count>\d+) wait to be told"), "另有 {count} 个待通知"),
    (
        re.compile(r"sre incident list; raise max_per_hour of route (?P<route>.+) if this came too late"),
        "sre incident list；若通知过晚，调高路由 {route} 的 max_per_hour",
    ),
    (re.compile(r"webhook route (?P<route>.+)"), "webhook 路由 {route}"),
    (
        re.compile(r"(?P<count>\d+) alerts of a notification cannot be read and are lost: (?P<first>.+)"),
        "一条通知中有 {count} 个告警无法解析而丢失：{first}",
    ),
    (
        re.compile(
            r"(?P<count>\d+) alerts of a group \((?P<what>.+)\) are left out of its notification; what is new may be"
            r" among them"
        ),
        "一组告警（{what}）的通知未列出其中 {count} 个；新告警可能在其中",
    ),
    (
        re.compile(r"(?P<count>\d+) alerts of a group are left out of its notification; what is new may be among them"),
        "一组告警的通知未列出其中 {count} 个；新告警可能在其中",
    ),
    (
        re.compile(r"look at that group in Alertmanager; raise max_alerts of its receiver, or group by more labels"),
        "请在 Alertmanager 中查看该组；调高其接收器的 max_alerts，或按更多标签分组",
    ),
    (
        re.compile(r"alerts cannot be stored, so nobody is told of them: (?P<why>.+)"),
        "告警无法存储，因此无人收到通知：{why}",
    ),
    (re.compile(r"alerts can be stored again"), "告警已可存储"),
    (
        re.compile(r"free the disk, or mend the guard's state folder; Alertmanager sends the alerts again by itself"),
        "请释放磁盘空间或修复守护进程的状态目录；Alertmanager 会自动重发告警",
    ),
    (re.compile(r"look at the templates and versions of Alertmanager"), "检查 Alertmanager 的模板和版本"),
    (
        re.compile(r"notifications are refused and lost: (?P<sentence>.+)"),
        "通知被拒收而丢失：{sentence}",
    ),
    (re.compile(r"they are not posted to (?P<path>\S+)"), "未发送到 {path}"),
    (re.compile(r"they are compressed"), "内容经过压缩"),
    (
        re.compile(r"more than (?P<count>\d+) bytes; raise webhook\.max_body_bytes, or set max_alerts at Alertmanager"),
        "超过 {count} 字节；调高 webhook.max_body_bytes，或在 Alertmanager 设置 max_alerts",
    ),
    (
        re.compile(r"mend it at Alertmanager; until then its alerts reach nobody through this webhook"),
        "请在 Alertmanager 一侧修复；在此之前其告警无法经此 webhook 通知任何人",
    ),
    (
        re.compile(r"a stored record is damaged and was set aside: (?P<what>.+)"),
        "一条已存储的记录损坏，已搁置：{what}",
    ),
    (
        re.compile(r"look at the disk and at the guard's log; nothing else was kept back"),
        "检查磁盘和守护进程日志；其余内容不受影响",
    ),
    (
        re.compile(r"webhook\.tls_certificate cannot be renewed \((?P<why>.+)\); the old one is used on"),
        "webhook.tls_certificate 无法更新（{why}）；继续使用旧证书",
    ),
    (
        re.compile(r"put a certificate and its key there; they are taken without a restart"),
        "放入匹配的证书和私钥；无需重启即可生效",
    ),
)
