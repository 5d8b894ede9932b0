"""Model of an inference engine and of a GPU; time is passed in."""
