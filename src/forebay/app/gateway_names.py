"""What the gateways of one `forebay up` are called, and the files by which they say that they are ready."""


def gateway_name(number: int) -> str:
    """Of the ``number``-th, from 0: the same for each process that takes its place."""
    return f"gateway-{number}"


def ready_marker(name: str) -> str:
    """The file in the state folder by which the gateway ``name`` says that it is ready."""
    return f"{name}.ready"
