"""Real processes while others die, hang or send false messages: `make test-faults`."""
