"""Other autoscalers' control laws as policies, faithful to their sources, faults included: what Forebay is compared with."""

from forebay.scaling.baselines.registry import ABOUT, ASIDE, About, named

__all__ = ["ABOUT", "ASIDE", "About", "named"]
