"""Flags of ``tocsin serve`` about actions, and the key with which its controller signs them."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tocsin.cli.policy import add_policy_argument
from tocsin.schemas.credential_store import CredentialStore, read_credentials, write_credentials
from tocsin.schemas.credentials import Credential, Role
from tocsin.schemas.errors import ConfigError, CredentialError

if TYPE_CHECKING:
    from tocsin.pipeline.identity.key_file import ActionKeys
    from tocsin.pipeline.runtime.embedded.actions.action_attach import ActionSettings

KEY_FILE: Final = "controller-key.json"
PUBLIC_FILE: Final = "controller-public.json"
_MOST_SPARES: Final = 100_000


def add_action_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say whether and how the engine's controller acts."""
    group = parser.add_argument_group("actions (docs/actions.md)")
    text = "let executors carry out what the policy asks for and no guard is against (default: a dry run, shown only)"
    is_set = os.environ.get("TOCSIN_ACT", "") not in {"", "0"}
    group.add_argument("--act", action="store_true", default=is_set, help=f"{text} [env: TOCSIN_ACT]")
    add_policy_argument(group)
    text = "machines that can take the place of another, where no job controller says how many (default: the policy's)"
    group.add_argument("--spares", type=_spares, metavar="N", help=text)
    text = "jobs can (not) go on with fewer machines, where no job controller says so (default: the policy's)"
    group.add_argument("--may-shrink", action=argparse.BooleanOptionalAction, default=None, help=text)


def _spares(text: str) -> int:
    """Return a number of machines; ``argparse`` reports other texts."""
    if not text.isdecimal() or int(text) > _MOST_SPARES:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number from 0 to {_MOST_SPARES}")
    return int(text)


def settings_of(args: argparse.Namespace, folder: Path, store: CredentialStore | None) -> ActionSettings:
    """Return with what the controller of an engine works.

    Args:
        args: the flags, ``--hold`` among them.
        folder: data folder, with the controller's key; the key is made if absent.
        store: credentials, with the executors' keys; None: there are none.

    Raises:
        ConfigError: the policy file is wrong.
        CredentialError: the key's file cannot be used.
    """
    from tocsin.pipeline.actions.policy.policy_file import DEFAULT_POLICY, load_policy
    from tocsin.pipeline.runtime.embedded.actions.action_attach import ActionSettings

    policy = load_policy(args.policy or DEFAULT_POLICY)
    config = policy.limits.controller_config(
        is_dry_run=not args.act, spare_count=args.spares, may_shrink=args.may_shrink
    )

    def credentials() -> tuple[Credential, ...]:
        if store is None:
            return ()
        store.refresh()
        return store.all()

    config = replace(config, after_change_seconds=args.hold[1])
    return ActionSettings(policy, config, controller_key(folder), credentials)


def controller_key(folder: Path) -> Credential:
    """Return the private key of the controller in a data folder; a first one is made, with its public half beside it.

    Raises:
        CredentialError: a file cannot be read or written, or holds no such key.
    """
    from tocsin.pipeline.identity.message_signatures import new_signing_key, public_half

    path = folder / KEY_FILE
    if not path.exists():
        fresh = new_signing_key(Role.CONTROLLER, "engine", time.time_ns())
        write_credentials(folder / PUBLIC_FILE, (public_half(fresh),))  # first: a key without it would be of no use
        write_credentials(path, (fresh,))
    found = [one for one in read_credentials(path) if one.role is Role.CONTROLLER and one.secret]
    if not found:
        raise CredentialError(str(path), f"a file with a private key of role {Role.CONTROLLER.value}")
    return max(found, key=lambda one: one.created_ns)


def action_keys_of(path: str) -> ActionKeys | None:
    """Return what checks the signatures of actions against a file of credentials, None: they are not checked.

    The file is read again when it changes.

    Raises:
        ConfigError: the file holds no controller's key.
        CredentialError: the file cannot be read.
    """
    if not path:
        return None
    from tocsin.pipeline.identity.key_file import ActionKeys

    keys = ActionKeys(path)
    if not keys.now().key_ids:
        must = "a file with a public key of role controller (tocsin token issue NAME --role controller)"
        raise ConfigError("--controller-keys", path, must)
    return keys
