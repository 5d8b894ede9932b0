"""Where the toolkit keeps its state on disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sre.errors import ConfigError
from sre.settings.base import expanded
from sre.settings.stack import StackSettings

LONGEST_SOCKET_PATH = 100
"""A Unix socket path holds 107 bytes; a margin for temporary names beside it."""


@dataclass(frozen=True, slots=True)
class StatePaths:
    """All files of one stack. ``root`` is absolute, mode 0700, owned by the user who runs ``sre``."""

    root: Path

    @property
    def run(self) -> Path:
        """Sockets, ledger, lock, overlays: meaningless after a reboot."""
        return self.root / "run"

    @property
    def lock(self) -> Path:
        """flock held by the supervisor that runs this stack."""
        return self.run / "supervisor.lock"

    @property
    def supervisor_socket(self) -> Path:
        return self.run / "supervisor.sock"

    @property
    def guard_socket(self) -> Path:
        return self.run / "guard.sock"

    @property
    def ledger(self) -> Path:
        """Processes the supervisor started: what the next one re-adopts."""
        return self.run / "processes.json"

    @property
    def ports(self) -> Path:
        """Ports chosen for engines to which sre.yaml gives none."""
        return self.root / "ports.json"

    @property
    def gpu_overlay(self) -> Path:
        """GPU values that a chaos fault puts over the real ones, with an expiry."""
        return self.run / "gpu-overlay.json"

    @property
    def engine_faults(self) -> Path:
        """Faults that engines with a hook act out, with an expiry."""
        return self.run / "engine-faults"

    @property
    def sim_gpu(self) -> Path:
        """Folder in which each simulated engine says how it loads its simulated GPUs."""
        return self.run / "sim-gpu"

    @property
    def gateway(self) -> Path:
        """Working folder of Envoy: bootstrap.yaml, dyn/, run/."""
        return self.root / "gateway"

    @property
    def admin_socket(self) -> Path:
        return self.gateway / "run" / "admin.sock"

    @property
    def probe_socket(self) -> Path:
        return self.gateway / "run" / "probe.sock"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def guard_db(self) -> Path:
        """SQLite: breaker state, journal, outbox."""
        return self.root / "guard.db"

    @property
    def incidents(self) -> Path:
        return self.root / "incidents"

    @property
    def chaos(self) -> Path:
        return self.root / "chaos"

    def create(self) -> None:
        """
        Make the folders, or close those that are there to others: 0700, whatever they were.

        Raises:
            ConfigError: That is impossible, with the reason and what to do; or others could write in ``root``, so that
                what lies in it cannot be trusted.
        """
        folders = (self.root, self.run, self.logs, self.incidents, self.chaos, self.sim_gpu, self.engine_faults)
        try:
            for folder in folders:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self._impossible(error) from error
        owner = self.root.stat().st_uid
        if owner != os.geteuid():
            raise ConfigError(
                [f"state folder {self.root}: belongs to uid {owner}, not to you; choose another one with --state-dir"]
            )
        if self.root.stat().st_mode & 0o022:
            raise ConfigError([f"state folder {self.root}: others may write in it; run chmod go-w {self.root}"])
        try:
            for folder in folders:
                found = folder.stat()
                if found.st_uid == owner and stat.S_IMODE(found.st_mode) != 0o700:
                    folder.chmod(0o700)
        except OSError as error:
            raise self._impossible(error) from error

    def _impossible(self, error: OSError) -> ConfigError:
        return ConfigError(
            [f"state folder {self.root}: {error.strerror or error}; choose another one with --state-dir"]
        )


def state_paths(stack: StackSettings, override: Path | None, environ: Mapping[str, str]) -> StatePaths:
    """
    Return the state folder of ``stack``: ``override``, else ``stack.state_dir``, else ``$XDG_STATE_HOME/sre/NAME``.

    Raises:
        ConfigError: The path is too long to hold Unix sockets, or in the home folder of a user who is not here.
    """
    base = Path(environ.get("XDG_STATE_HOME") or Path(environ.get("HOME", "/")) / ".local" / "state")
    chosen = expanded(override or stack.state_dir or base / "sre" / stack.name)
    if str(chosen).startswith("~"):
        user = chosen.parts[0].removeprefix("~")
        raise ConfigError([f"state folder {chosen}: no user {user} here; a folder of this name is ./{chosen.parts[0]}"])
    root = chosen.absolute()
    paths = StatePaths(root)
    longest = len(os.fsencode(paths.supervisor_socket)) + len("gateway/") - len("run/")
    if longest > LONGEST_SOCKET_PATH:
        raise ConfigError(
            [f"state folder {root}: path too long for Unix sockets ({longest} > {LONGEST_SOCKET_PATH} bytes);"
             " choose a shorter one with --state-dir"]
        )  # fmt: skip
    return paths
