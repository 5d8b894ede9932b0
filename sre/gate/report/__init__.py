"""
What a gate run is told as: ``gate.json``, request logs, JUnit, Markdown, HTML, annotations of a CI job.

Every writer takes a ``GateResult`` and gives text; nothing here reads a clock, a file or the network.
"""
