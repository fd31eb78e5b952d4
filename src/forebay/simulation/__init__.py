"""The policy lab: a fleet in virtual time, fast enough to play weeks, and what a policy would have cost and broken there."""
