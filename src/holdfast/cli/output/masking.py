"""URLs without their secrets, for everything that is printed."""

SECRET = "********"
SECRET_WORDS = ("password", "key", "token", "secret", "sig")
"""Words that mark a query parameter of a URL as secret."""


def mask_url(url: str) -> str:
    """Return a URL with its password and secret query parameters masked."""
    address, mark, query = url.partition("?")
    scheme, separator, rest = address.partition("://")
    login, at, location = rest.rpartition("@")
    if separator and at and ":" in login:
        address = f"{scheme}://{login.partition(':')[0]}:{SECRET}@{location}"
    return address + mark + "&".join(_mask_parameter(part) for part in query.split("&"))


def _mask_parameter(part: str) -> str:
    name, mark, _ = part.partition("=")
    is_secret = mark and any(word in name.lower() for word in SECRET_WORDS)
    return f"{name}={SECRET}" if is_secret else part


def create_key_hint(store_url: str) -> str:
    """Return a command to create an API key in this store; without options it uses the default."""
    return f"create one with `holdfast keys create --store {mask_url(store_url)}`"
