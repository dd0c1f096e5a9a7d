"""The command line as the tests of the command line call it."""

from tests.cli.conftest import run

__all__ = ["run"]
