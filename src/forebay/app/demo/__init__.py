"""The worked example, live: the same morning ramp with the warm buffer and without it, over real HTTP."""
