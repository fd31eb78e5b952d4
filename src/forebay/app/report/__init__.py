"""The page one shows: what policies would have cost and kept on one's own traffic, in a single file without a network."""
