"""The flag of all commands that use the model registry."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tocsin.pipeline.lab.registry import Registry

VARIABLE: Final = "TOCSIN_REGISTRY"
_DEFAULT: Final = "tocsin-models"


def add_registry_argument(parser: argparse.ArgumentParser) -> None:
    """Add the flag ``--registry``."""
    text = f"folder, or address such as s3://BUCKET/PATH, of the models [env: {VARIABLE}; default: ./{_DEFAULT}]"
    parser.add_argument("--registry", metavar="WHERE", default="", help=text)


def registry_of(args: argparse.Namespace) -> Registry:
    """Return the registry that the flag, the environment or the default names.

    Raises:
        ConfigError: the address is not valid.
    """
    from tocsin.pipeline.lab.registry import Registry

    return Registry.open(args.registry or os.environ.get(VARIABLE) or _DEFAULT)
