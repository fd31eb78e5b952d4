"""Other autoscalers' control laws as policies, faithful to their sources, faults included: what Forebay is compared with."""

from forebay.scaling.baselines.registry import ABOUT, ASIDE, About, named
from forebay.scaling.baselines.settings import targets

__all__ = ["ABOUT", "ASIDE", "About", "named", "targets"]
