"""The command line: one module per command, which calls the API and prints the result."""
