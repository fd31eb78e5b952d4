"""Other autoscalers' control laws as policies, faithful to their sources, faults included: what Forebay is compared with."""
