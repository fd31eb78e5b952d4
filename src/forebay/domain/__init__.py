"""Values shared by rooms that may not import each other. Nothing here acts, waits, or reads a clock."""
