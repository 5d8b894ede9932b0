"""The recorded /metrics of several releases, served as if those exporters ran: counters grow from scrape to scrape."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from sre.metrics.catalogue import CATALOGUE
from sre.metrics.types import Exporter, Kind, Version
from tests.support.prometheus import Target

DATA = Path(__file__).parents[1] / "data"
GROWTH_PER_SECOND = 0.001
"""Share of its recorded value by which a counter grows."""
_SAMPLE = re.compile(r"(?P<series>(?P<name>[a-zA-Z_:][\w:]*)(?:\{.*\})?) (?P<value>\S+)")


@dataclass(frozen=True, slots=True)
class Release:
    """One recorded text; its name is the host of the target and the name of the model, so that nothing is shared."""

    name: str
    exporter: Exporter
    version: Version

    @property
    def instance(self) -> str:
        return f"{self.name}:8000"

    @property
    def variables(self) -> dict[str, str]:
        """What a user chooses at the top of a dashboard to see this release alone."""
        job = {Exporter.VLLM: "vllm", Exporter.DCGM: "dcgm", Exporter.NODE: "node"}[self.exporter]
        return {"job": job, "node": self.name, "instance": self.instance, "model": self.name}


RELEASES = (
    Release("vllm-0.8", Exporter.VLLM, Version(0, 8)),
    Release("vllm-0.11", Exporter.VLLM, Version(0, 11)),
    Release("vllm-0.19", Exporter.VLLM, Version(0, 19)),
    Release("vllm-0.32", Exporter.VLLM, Version(0, 32)),
    Release("dcgm-4.8", Exporter.DCGM, Version(4, 8)),
    Release("dcgm-4.9", Exporter.DCGM, Version(4, 9)),
    Release("dcgm-4.9-mig", Exporter.DCGM, Version(4, 9)),
    Release("node-1.5", Exporter.NODE, Version(1, 5)),
)


def grows(sample: str) -> bool:
    """Whether a sample is counted up: not gauges, and not what is a rate already."""
    metric = CATALOGUE.by_sample(sample)
    return metric is not None and metric.kind is not Kind.GAUGE and not metric.rate_already


def lines(release: Release) -> Iterator[str | tuple[str, float]]:
    """Lines that stay, and (series, recorded value) of those that grow."""
    text = (DATA / f"{release.name}.metrics.txt").read_text()
    text = re.sub(r'model_name="[^"]*"', f'model_name="{release.name}"', text)
    for line in text.splitlines():
        sample = _SAMPLE.fullmatch(line)
        if sample is not None and grows(sample["name"]):
            yield sample["series"], float(sample["value"])
        else:
            yield line


class RecordedExporters:
    """All releases on one port, each under a path of its own."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        texts = {f"/{release.name}": list(lines(release)) for release in RELEASES}
        recorded = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = recorded._body(texts[self.path])
                # A scrape that took too long on a busy machine has hung up; the next one comes in a second.
                with contextlib.suppress(ConnectionError):
                    self.send_response(200)
                    self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def _body(self, text: list[str | tuple[str, float]]) -> bytes:
        factor = 1 + GROWTH_PER_SECOND * (time.monotonic() - self._began)
        parts = (line if isinstance(line, str) else f"{line[0]} {line[1] * factor!r}" for line in text)
        return ("\n".join(parts) + "\n").encode()

    def __enter__(self) -> RecordedExporters:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def jobs(self) -> dict[str, list[Target]]:
        """Scrape jobs; ``release`` tells the targets apart, ``node`` is set as it is where machines share exporters."""
        address = f"127.0.0.1:{self._server.server_address[1]}"
        found: dict[str, list[Target]] = {}
        for release in RELEASES:
            labels = {
                "__metrics_path__": f"/{release.name}", "instance": release.instance, "node": release.name,
                "release": release.name,
            }  # fmt: skip
            found.setdefault(release.variables["job"], []).append(Target(address, labels))
        return found
