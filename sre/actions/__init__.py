"""What we can do, as values, and the ports through which it is done."""
