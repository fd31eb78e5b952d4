"""Forebay: the queue-first control plane for LLM inference."""

from forebay.native import compiled

HANDLED_IN = compiled.install()
"""What handles requests: C, or Python and why. Said before any module that may be C is imported."""
