"""Model of an inference engine and its GPU: pure; time and randomness are passed in."""
