"""OpenAI wire values: chat messages, responses and stream events."""
