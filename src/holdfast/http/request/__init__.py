"""Reading requests: bodies, headers, authentication, limits and the turn to submit."""
