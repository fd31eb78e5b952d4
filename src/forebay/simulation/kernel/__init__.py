"""The fast fleet's inner loops: numba functions over plain arrays, jumping from event to event."""
