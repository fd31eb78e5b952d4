"""What engines say of themselves, read from their metrics pages."""

from forebay.adapters.scrape.scan import Page, scan
from forebay.adapters.scrape.source import ScrapeSource

__all__ = ["Page", "ScrapeSource", "scan"]
