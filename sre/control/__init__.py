"""The loops: guard, supervisor, chaos run, demo. They take ports; ``wiring`` hands them in."""
