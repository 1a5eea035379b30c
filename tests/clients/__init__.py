"""Run the page of each client with that client, against a gateway process."""
