"""The manifest of a Slack app, which an operator pastes when creating the app."""

from typing import Any

SCOPES = (
    "app_mentions:read", "channels:history", "channels:read", "chat:write", "files:read",
    "files:write", "groups:history", "groups:read", "im:history", "im:read", "im:write",
    "mpim:history", "mpim:read", "users:read",
)  # fmt: skip
EVENTS = ("app_mention", "message.channels", "message.groups", "message.im", "message.mpim")


def app_manifest(name: str) -> dict[str, Any]:
    """Return the manifest of an app that uses socket mode."""
    return {
        "display_information": {"name": name},
        "features": {
            "app_home": {"messages_tab_enabled": True, "messages_tab_read_only_enabled": False},
            "bot_user": {"display_name": name, "always_online": True},
        },
        "oauth_config": {"scopes": {"bot": list(SCOPES)}},
        "settings": {
            "event_subscriptions": {"bot_events": list(EVENTS)},
            "interactivity": {"is_enabled": True},
            "socket_mode_enabled": True,
            "token_rotation_enabled": False,
        },
    }
