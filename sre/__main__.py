"""
The commands' entry points, also ``python -m sre``. Ctrl-C while Python still reads modules in ends in one line.

Nothing is imported above that which catches it.
"""

from __future__ import annotations

import os
import signal

ABORTED = 6
"""``sre.errors.ExitCode.ABORTED``, which is not imported yet."""


def _abort(number: int, frame: object) -> None:
    # Nothing was begun. Not by an exception: one in the middle of an import may be swallowed or shown as another.
    os.write(2, b"sre: aborted\n")
    os._exit(ABORTED)


_OURS = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # whoever started us may have it ignored
if _OURS:
    signal.signal(signal.SIGINT, _abort)


def _read_in() -> None:
    """From now on Ctrl-C is an exception that commands can clean up after."""
    if _OURS:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def main() -> None:
    """Entry point of ``sre``."""
    from sre.cli.main import main as command

    _read_in()
    command()


def vllm_analyzer() -> None:
    """Entry point of ``vllm-analyzer``."""
    from sre.cli.aliases import vllm_analyzer as command

    _read_in()
    command()


def vllm_config() -> None:
    """Entry point of ``vllm-config``."""
    from sre.cli.aliases import vllm_config as command

    _read_in()
    command()


if __name__ == "__main__":
    main()
