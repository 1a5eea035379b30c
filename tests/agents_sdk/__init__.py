"""The OpenAI Agents SDK itself, on our session and against our gateway."""
