"""What the gateways of one `forebay up` are called, and the files that they leave in the state folder."""

from urllib.parse import quote


def gateway_name(number: int) -> str:
    """Of the ``number``-th, from 0: the same for each process that takes its place."""
    return f"gateway-{number}"


def roster_file(name: str) -> str:
    """The file in the state folder in which the gateway ``name`` keeps its last roster."""
    return f"{name}.roster"


def responses_file(name: str) -> str:
    """The file in the state folder in which the gateway ``name`` keeps which replica has which response."""
    return f"{quote(name, safe='')}.responses"


def ready_marker(name: str) -> str:
    """The file in the state folder by which the gateway ``name`` says that it is ready."""
    return f"{name}.ready"
