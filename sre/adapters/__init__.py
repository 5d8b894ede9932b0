"""Where we call out: one module or package per system, blind to each other except ``processes``."""
