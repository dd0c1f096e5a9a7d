"""The command line, a module a subcommand."""
