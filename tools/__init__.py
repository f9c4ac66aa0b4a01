"""What `make graph` writes into docs/: pages that are drawn from the code, not from memory."""
