"""Telegram's Bot API: updates in, messages out."""
