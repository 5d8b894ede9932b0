"""
The deploy gate: load plans, what was measured, knee, verdict, attribution, reports.
Pure: time and randomness are passed in.

``records`` and ``stages`` are what everything here speaks in; ``result`` is what one gate run leaves behind.
"""
