"""A session for the OpenAI Agents SDK."""
