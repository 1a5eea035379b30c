"""The doctor: checks a store and a configuration, explains findings, and fixes some of them."""
