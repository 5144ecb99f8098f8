"""``tocsin config check FILE``: checks the settings file of serve and agent."""

from __future__ import annotations

import argparse
import importlib
import re
from pathlib import Path

from tocsin.cli.config_file import COMMANDS, checked, read
from tocsin.cli.setting_checks import CHECKS
from tocsin.schemas.printable import plain

_PASSWORD = re.compile(r"(://[^/@:]*:)[^@/]*@")
"""The password in an address, which must not be printed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    check = verbs.add_parser("check", help="read the file as serve and agent would, and say what it sets")
    check.add_argument("file", metavar="FILE", type=Path)


def run(args: argparse.Namespace) -> int:
    """Check the file and print its settings, one per line, with passwords hidden; return the exit status 0.

    Raises:
        ConfigError: the file cannot be read, or a setting is wrong.
    """
    tables = read(args.file)
    for command in COMMANDS:
        parser = argparse.ArgumentParser(prog=f"tocsin {command}")
        importlib.import_module(f"tocsin.cli.{command}").add_arguments(parser)
        for name, value in checked(args.file, tables, command, parser, CHECKS[command]).items():
            shown = _PASSWORD.sub(r"\1***@", str(value))
            print(plain(f"{command}.{name} = {shown}"))
    print(plain(f"{args.file}: right"))
    return 0
