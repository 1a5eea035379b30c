"""The page of each client is run with that client, against a gateway process."""
