"""The command line: each command is a module, imported only when that command is called."""
