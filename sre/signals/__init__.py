"""What we see: immutable readings and snapshots. Not seeing is a value of its own."""
