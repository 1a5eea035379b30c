"""The OpenAI Agents SDK itself, on a HoldfastSession and against a gateway."""
