"""A Grafana that keeps dashboards in memory and checks requests as the real one does (pkg/api and pkg/services)."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

TOKEN = "glsa_good"
VIEWER = "glsa_viewer"
Json = dict[str, Any]


def refusal(code: int, message: str, **more: str) -> web.Response:
    return web.json_response({"message": message, **more}, status=code)


@dataclass
class FakeGrafana:
    """
    Attributes:
        dashboards: uid → stored JSON (with id and version) and folder uid.
        folders: uid → title.
        saves: Bodies of POST /api/dashboards/db, in order.
        failures: Answers given before anything else, one per request that ``failing`` accepts.
        plugin, provisioned: uids that belong to a plugin, or come from files.
    """

    dashboards: dict[str, tuple[Json, str]] = field(default_factory=dict)
    folders: dict[str, str] = field(default_factory=dict)
    saves: list[Json] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    failures: list[Callable[[], web.Response]] = field(default_factory=list)
    failing: Callable[[web.Request], bool] = lambda request: True
    plugin: frozenset[str] = frozenset()
    provisioned: frozenset[str] = frozenset()
    prefix: str = ""
    url: str = ""
    _runner: web.AppRunner | None = None

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        @web.middleware
        async def gate(request: web.Request, handler: Any) -> web.StreamResponse:
            self.requests.append(f"{request.method} {request.path}")
            if self.failures and self.failing(request):
                return self.failures.pop(0)()
            given = request.headers.get("Authorization", "")
            if given not in (f"Bearer {TOKEN}", f"Bearer {VIEWER}"):
                return refusal(401, "Invalid API key")
            if request.method == "POST" and request.content_type != "application/json":
                return refusal(400, "bad request data")
            if request.method == "POST" and given.endswith(VIEWER):
                return refusal(403, "You'll need additional permissions to perform this action.")
            response: web.StreamResponse = await handler(request)
            return response

        app = web.Application(middlewares=[gate])
        app.router.add_get(self.prefix + "/api/dashboards/uid/{uid}", self._get)
        app.router.add_post(self.prefix + "/api/dashboards/db", self._save)
        app.router.add_get(self.prefix + "/api/folders/{uid}", self._folder)
        app.router.add_post(self.prefix + "/api/folders", self._make_folder)
        self._runner = web.AppRunner(app, handle_signals=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        assert site._server is not None
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}{self.prefix}"

    async def stop(self) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _get(self, request: web.Request) -> web.Response:
        uid = request.match_info["uid"]
        if uid not in self.dashboards:
            return refusal(404, "Dashboard not found")
        document, folder = self.dashboards[uid]
        meta = {"folderUid": folder, "version": document["version"], "url": f"/d/{uid}/x", "provisioned": False}
        return web.json_response({"dashboard": document, "meta": meta})

    async def _save(self, request: web.Request) -> web.Response:
        try:
            body = json.loads(await request.text())
        except ValueError:
            return refusal(400, "bad request data")
        document, overwrite = body.get("dashboard"), body.get("overwrite", False)
        if not isinstance(document, dict) or not isinstance(overwrite, bool):
            return refusal(400, "bad request data")
        self.saves.append(body)
        uid = document.get("uid") or ""
        if not document.get("title"):
            return refusal(400, "Dashboard title cannot be empty", status="empty-name")
        if len(uid) > 40:
            return refusal(400, "uid too long, max 40 characters")
        if not re.fullmatch(r"[a-zA-Z0-9_-]+", uid):
            return refusal(400, "uid contains illegal characters")
        folder = body.get("folderUid", "")
        if folder and folder not in self.folders:
            return refusal(400, "folder not found")
        if uid in self.provisioned:
            return refusal(400, "Cannot save provisioned dashboard")
        stored = self.dashboards.get(uid)
        version = 0
        if stored is not None:
            version = stored[0]["version"]
            if not overwrite and document.get("version", 0) != version:
                return refusal(412, "The dashboard has been changed by someone else", status="version-mismatch")
            if not overwrite and uid in self.plugin:
                return refusal(412, "The dashboard belongs to plugin X", status="plugin-dashboard")
        saved = {**document, "id": 100 + len(self.dashboards), "version": version + 1}
        self.dashboards[uid] = (saved, folder)
        path = f"{self.prefix}/d/{uid}/slug"
        return web.json_response(
            {"id": saved["id"], "uid": uid, "url": path, "status": "success", "version": version + 1, "slug": "slug"}
        )

    async def _folder(self, request: web.Request) -> web.Response:
        uid = request.match_info["uid"]
        if uid not in self.folders:
            return refusal(404, "folder not found", status="not-found")
        return web.json_response({"id": 1, "uid": uid, "title": self.folders[uid]})

    async def _make_folder(self, request: web.Request) -> web.Response:
        body = await request.json()
        if not body.get("title"):
            return refusal(400, "folder title cannot be empty")
        if body["uid"] in self.folders:
            return refusal(409, "a folder with the same uid already exists")
        self.folders[body["uid"]] = body["title"]
        return web.json_response({"id": 2, "uid": body["uid"], "title": body["title"]})
