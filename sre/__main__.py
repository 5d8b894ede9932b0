"""python -m sre."""

from sre.cli.main import main

main()
