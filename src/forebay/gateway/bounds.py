"""Every bound on what a client can make the gateway hold or wait for. Ticks are of the connections' one coarse timer."""

BACKLOG = 4096
TICK_S = 1.0
HANDSHAKE_S = 10.0
"""A TLS handshake must be over within this."""
HEAD_TICKS = 15
"""A head must be whole within this (slow-loris)."""
BODY_SILENT_TICKS = 15
BODY_BYTES_PER_TICK_MIN = 16 * 1024
BODY_GRACE_TICKS = 30
"""A body may be so far behind that pace, and no further, however fast it came before (a slow-loris that drips)."""
KEEP_ALIVE_TICKS = 75
UNHELD_BYTES_MAX = 64 * 1024
"""A body of a stranger that long is read to its end and dropped, so that the connection can go on; a longer one ends it at its head."""
LINGER_TICKS = 3
"""After a refusal that left a body unread: how long the client, once it sends no more, has to read it before the connection is closed."""
DRAIN_TICKS = 30
"""So long what it goes on sending is read, and dropped: closed before that, it would see a reset in place of the refusal."""
CONNECTIONS_MAX = 10**6
"""Where nobody says how many files may be open: what `limits.connections` may be at most."""
PIPELINED_BYTES_MAX = 64 * 1024
HEADERS_MAX = 128
FRAMING_FACTOR_MAX = 8
HELD_IDS_BYTES_MAX = 256 * 2**20
"""Token ids that all streams hold to be continued from; those that find no room aren't continued."""
LARGE_BODIES_FRACTION = 0.5
"""Of the budget of all bodies: beyond it no large body is held any further, so that they can't shut out the small ones."""
