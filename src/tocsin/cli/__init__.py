"""The command line: one module a command, loaded only when that command is called."""
