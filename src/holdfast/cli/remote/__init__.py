"""Commands about the tools of a running gateway."""
