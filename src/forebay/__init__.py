"""Forebay: the queue-first control plane for LLM inference."""
