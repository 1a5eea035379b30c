"""Markdown for chat platforms: split into messages, rendered to each platform's format."""
