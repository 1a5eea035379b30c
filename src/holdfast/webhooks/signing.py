"""Signatures of the Standard Webhooks specification: HMAC-SHA256 over id, time and body."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

SECRET_PREFIX = "whsec_"
MIN_KEY_BYTES, MAX_KEY_BYTES = 24, 64


def read_keys(secret: str) -> list[bytes]:
    """Return the keys of a secret: several, separated by blanks, during a rotation."""
    keys: list[bytes] = []
    for part in secret.split():
        try:
            key = base64.b64decode(part.removeprefix(SECRET_PREFIX), validate=True)
        except (binascii.Error, ValueError) as exc:
            raise ValueError(f"a secret is {SECRET_PREFIX} and base64") from exc
        if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
            raise ValueError(
                f"a secret has {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes, not {len(key)}"
            )
        keys.append(key)
    if not keys:
        raise ValueError("a secret is needed")
    return keys


def signed_headers(
    keys: Sequence[bytes], message_id: str, timestamp: int, body: bytes
) -> dict[str, str]:
    """Return the headers of one attempt, with a signature for each key."""
    content = b"%b.%d.%b" % (message_id.encode(), timestamp, body)
    signatures = [
        base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode() for key in keys
    ]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
