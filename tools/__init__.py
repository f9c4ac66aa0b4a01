"""What `make graph` and `make results` write: pages from the code and from records."""
