"""A name that is misspelt is refused: an empty answer, or "nothing to do", would be taken for good news."""

from __future__ import annotations

import pytest

from tests.cli.conftest import RunSre


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        ("chaos recover --discard nix", 2, "--discard: no run 'nix'; see sre chaos status"),
        ("chaos recover --discard nix --dry-run", 2, "--discard: no run 'nix'; see sre chaos status"),
        ("chaos inject gpu-hangg --dry-run", 2, "did you mean 'gpu-hang'?"),
        ("notify test nix", 2, "no channel 'nix'; known: none"),
        ("notify outbox drop --all-dead --channel nix", 2, "no channel 'nix'; known: none"),
        ("notify outbox list --incident nix", 3, "there is no 'nix'; see sre incident list"),
        ("notify outbox list --digest nix", 3, "there is no digest 'nix'"),
        ("notify outbox show 7", 3, "no message 7"),
        ("incident show nix", 3, "there is no 'nix'"),
        ("incident timeline nix", 3, "there is no 'nix'"),
        ("incident ack nix", 3, "no message about 'nix' is on record"),
        ("gate report nix", 2, "no run and no file 'nix'"),
        ("gate baseline show nix", 2, "no baseline 'nix'"),
        ("analyze bottleneck nix", 2, "no run and no file 'nix'"),
        ("rules test --alert Vllmdown", 2, "did you mean VllmModelDown?"),
        ("rules lint --only nix x.yml", 2, "there is no check 'nix'"),
        ("rules lint --disable nix x.yml", 2, "there is no check 'nix'"),
        ("runbook show VllmEngineHun", 2, "did you mean VllmEngineHung?"),
    ],
)
def test_a_name_that_nobody_knows_is_refused(
    argv: str, code: int, said: str, run_sre: RunSre, monkeypatch: pytest.MonkeyPatch, short_dir: object
) -> None:
    monkeypatch.chdir(str(short_dir))
    ran = run_sre("--state-dir", str(short_dir), *argv.split())
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
