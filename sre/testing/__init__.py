"""In-memory stand-ins for ports, each beside a contract test that also runs on the real system."""
