"""The composition root: the one place where parts meet, where files and the environment are read, and processes begin."""
