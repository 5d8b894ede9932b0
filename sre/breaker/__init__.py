"""The circuit breaker: (state, snapshot, policy) -> decision."""
