"""Engines over HTTP/1.1: kept-alive connections, llhttp on the side, bytes handed on as they were read."""

from forebay.adapters.upstream.client import HttpUpstream

__all__ = ["HttpUpstream"]
