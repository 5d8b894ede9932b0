"""``python -m sre.watchdog JOURNAL BEAT_FD REPLY_FD``; started by sre.watchdog.lease only."""

import sys

from sre.watchdog.loop import run

sys.exit(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
