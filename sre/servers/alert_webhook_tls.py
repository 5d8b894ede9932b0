"""A certificate that is renewed without a restart."""

from __future__ import annotations

import os
import ssl

from sre.servers.gate import tls_context

Stamp = tuple[tuple[int, int, int], ...]


class Certificate:
    """
    What speaks TLS with the certificate that stands in two files, also after they changed.

    ``context`` is for the listener and stays the same: with each handshake it hands over to what the files held when
    they were last looked at and fitted together. A connection keeps what it began with.
    """

    def __init__(self, certificate: str, key: str) -> None:
        """Raises OSError, ssl.SSLError: The files cannot be read, or do not belong together."""
        self._files = certificate, key
        self._stamp = self._stamp_now()
        self.context = tls_context(certificate, key)
        self._present = self.context
        self.context.sni_callback = self._hand_over

    def look(self) -> bool:
        """
        Return whether the files changed and are used from now on. Blocks on the disk.

        Raises:
            OSError, ssl.SSLError: They changed and cannot be used; what was used before is used on.
        """
        stamp = self._stamp_now()
        if stamp == self._stamp:
            return False
        # A context of its own: half of a renewal never reaches a handshake.
        self._present = tls_context(*self._files)
        self._stamp = stamp
        return True

    def _hand_over(self, handshake: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        handshake.context = self._present

    def _stamp_now(self) -> Stamp:
        found = [os.stat(path) for path in self._files]
        return tuple((one.st_mtime_ns, one.st_size, one.st_ino) for one in found)
