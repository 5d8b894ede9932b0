"""The admin socket when it answers something else than expected; files that cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web

from sre.adapters.envoy.admin import AdminClient
from sre.adapters.envoy.files import write_document
from sre.errors import MalformedResponse, StateError


@pytest.mark.integration
@pytest.mark.parametrize(
    "text",
    ["", "no json", "[]", "null", "{}", '{"entries": 1}', '{"entries": {"k": {}}}', '{"entries": {"k": null}}',
     '{"cluster_statuses": [{}]}', '{"cluster_statuses": 1}', '{"cluster_statuses": [1]}'],
)  # fmt: skip
async def test_answer_of_another_form_is_malformed_and_said_so(short_dir: Path, text: str) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=text)

    app = web.Application()
    app.router.add_get("/{tail:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    client = AdminClient(short_dir / "admin.sock")
    try:
        await web.UnixSite(runner, str(short_dir / "admin.sock")).start()
        ask = client.hosts if "cluster" in text else client.runtime
        with pytest.raises(MalformedResponse, match="another form"):
            await ask()
    finally:
        await client.close()
        await runner.cleanup()


def test_file_that_cannot_be_written_nor_cleaned_up_is_a_state_error(tmp_path: Path) -> None:
    """Its folder is a file: removing the temporary file fails as making it did."""
    (tmp_path / "folder").write_text("")
    with pytest.raises(StateError, match="cannot be written"):
        write_document(tmp_path / "folder" / "x.json", {})
