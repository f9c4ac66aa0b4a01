"""What real processes do when others die, hang or lie: `make test-faults`."""
