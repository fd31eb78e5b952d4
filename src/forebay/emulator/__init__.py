"""Engines without a GPU: vLLM's HTTP API and metrics, behaving by a profile in real or accelerated time."""
