"""Every bound on what a client can make the gateway hold or wait for. Ticks are of the connections' one coarse timer."""

BACKLOG = 4096
TICK_S = 1.0
HANDSHAKE_S = 10.0
"""A TLS handshake must be over within this."""
HEAD_TICKS = 15
"""A head must be whole within this (slow-loris)."""
BODY_SILENT_TICKS = 15
BODY_GRACE_TICKS = 30
BODY_BYTES_PER_TICK_MIN = 16 * 1024
"""After the grace a body must have come at this pace or faster, on the whole (a slow-loris that drips)."""
KEEP_ALIVE_TICKS = 75
LINGER_TICKS = 3
"""After a refusal that left a body unread: how long the client has to read it before the connection is closed."""
CONNECTIONS_MAX = 10**6
"""Where nobody says how many files may be open: what `limits.connections` may be at most."""
PIPELINED_BYTES_MAX = 64 * 1024
HEADERS_MAX = 128
FRAMING_FACTOR_MAX = 8
HELD_IDS_BYTES_MAX = 256 * 2**20
"""Token ids that all streams hold to be continued from; those that find no room aren't continued."""
LARGE_BODIES_FRACTION = 0.5
"""Of the budget of all bodies: beyond it no large body is held any further, so that they can't shut out the small ones."""
