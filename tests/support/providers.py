"""
Every provider of messages on one port: a proxy that answers itself, with TLS, for whatever host is asked for.

So a delivery worker speaks to ``hooks.slack.com`` as it would in earnest: same URL, same TLS, same verification of the
host's name. Nothing leaves the machine.
"""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qsl, urlsplit

from sre.servers.sinks import LOOPBACK
from tests.conftest import require_binary

HOSTS = (
    "hooks.slack.com",
    "api.twilio.com",
    "sns.us-east-1.amazonaws.com",
    "oapi.dingtalk.com",
    "open.feishu.cn",
    "qyapi.weixin.qq.com",
    "dysmsapi.aliyuncs.com",
    "sms.tencentcloudapi.com",
    "events.pagerduty.com",
    "hooks.example.org",
)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate that vouches for itself: who has it in the list of authorities trusts it."""

    file: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.file, self.key)
        return context


def make_certificate(folder: Path, name: str, *subjects: str) -> Certificate:
    """Make a certificate for ``subjects`` (DNS:… or IP:…) with openssl."""
    openssl = require_binary("openssl", "apt-get install openssl")
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    subprocess.run(
        [
            openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName={','.join(subjects)}",
            "-addext", "keyUsage=critical,digitalSignature,keyCertSign",
            "-out", str(made.file), "-keyout", str(made.key),
        ],
        check=True, capture_output=True, timeout=30,
    )  # fmt: skip
    return made


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came."""

    host: str
    method: str
    target: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query))

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def form(self) -> dict[str, str]:
        return dict(parse_qsl(self.body.decode()))

    @property
    def json(self) -> dict[str, object]:
        document: dict[str, object] = json.loads(self.body)
        return document


@dataclass(frozen=True, slots=True)
class Reply:
    status: int = 200
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    drip_seconds: float = 0.0
    """Send the body a byte at a time, with this between them, for ever."""
    silent: bool = False
    """Take the request and say nothing until the asker leaves."""
    cut: bool = False
    """Take the request and hang up."""


class Providers:
    """``with Providers(certificate) as providers: … providers.environ … providers.asked()``."""

    def __init__(self, certificate: Certificate, answer: Callable[[Asked], Reply]) -> None:
        self._certificate = certificate
        self._context = certificate.context()
        self.answer = answer
        self._asked: list[Asked] = []
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._listener = socket.create_server((LOOPBACK, 0), backlog=64)
        self._start(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._ending.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(timeout=60)

    @property
    def environ(self) -> dict[str, str]:
        """What a worker's environment needs to come here."""
        port = self._listener.getsockname()[1]
        return {
            "HTTPS_PROXY": f"http://{LOOPBACK}:{port}",
            "REQUESTS_CA_BUNDLE": str(self._certificate.file),
            "SSL_CERT_FILE": str(self._certificate.file),
        }

    def asked(self, host: str | None = None) -> list[Asked]:
        with self._lock:
            return [one for one in self._asked if host is None or one.host == host]

    def _start(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._ending.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(60)
        try:
            with connection:
                line, _, _ = _read_head(connection)
                host = line.split()[1].partition(":")[0]
                connection.sendall(b"HTTP/1.1 200 connected\r\n\r\n")
                with self._context.wrap_socket(connection, server_side=True) as secure:
                    self._answer(secure, host)
        except OSError:
            return  # the asker left, which is also an end

    def _answer(self, secure: ssl.SSLSocket, host: str) -> None:
        line, headers, rest = _read_head(secure)
        method, target, _ = line.split(" ", 2)
        while len(rest) < int(headers.get("content-length", "0")):
            rest += secure.recv(65536)
        asked = Asked(host, method, target, headers, rest)
        with self._lock:
            self._asked.append(asked)
        reply = self.answer(asked)
        if reply.cut:
            return
        if reply.silent:
            secure.recv(1)
            return
        body = reply.body.encode()
        length = 10**6 if reply.drip_seconds else len(body)
        head = {"Content-Length": str(length), "Connection": "close", **reply.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        secure.sendall(f"HTTP/1.1 {reply.status} x\r\n{lines}\r\n".encode() + body)
        while reply.drip_seconds and not self._ending.wait(reply.drip_seconds):
            secure.sendall(b".")


def _read_head(connection: socket.socket) -> tuple[str, dict[str, str], bytes]:
    raw = b""
    deadline = time.monotonic() + 60
    while b"\r\n\r\n" not in raw:
        chunk = connection.recv(65536)
        if not chunk or time.monotonic() > deadline:
            raise OSError("left")
        raw += chunk
    head, _, rest = raw.partition(b"\r\n\r\n")
    line, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)}
    return line, headers, rest
