"""Buttons below approval requests, and what a press of one means."""

from holdfast.ports.channel import Button

_ALLOW, _DENY = "allow:", "deny:"


def approval_buttons(approval_id: str) -> tuple[Button, ...]:
    """Return the buttons of an approval request."""
    return Button("Allow", _ALLOW + approval_id), Button("Deny", _DENY + approval_id)


def read_button(value: str) -> tuple[bool, str] | None:
    """Return whether a press approves, and which request; `None` for other values."""
    for prefix in (_ALLOW, _DENY):
        if value.startswith(prefix):
            return prefix == _ALLOW, value.removeprefix(prefix)
    return None
