"""
GPUs, read in a child process with a deadline: a GPU call can hang for ever, and its caller with it.

``reader`` is the guard's side, ``child`` the process; ``nvml`` and ``simulated`` are what the child reads from, and
``overlay`` puts the values of a chaos fault over either. The child imports nothing of the toolkit but the reading types
and the pure simulator, to stay small and start fast.
"""
