"""Compaction records, token budgets and the prompts that make summaries."""
