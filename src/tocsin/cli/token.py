"""``tocsin token issue | list | rotate | revoke``: manages the credentials with which hosts prove their identity."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tocsin.cli.paths import add_data_argument, credentials_file, data_folder
from tocsin.schemas.credential_store import change, read_credentials, write_credentials
from tocsin.schemas.credentials import (
    ANY_NAME,
    SIGNING_ROLES,
    Credential,
    Role,
    check_holder,
    format_credentials,
    new_credential,
)
from tocsin.schemas.errors import ConfigError, FieldError

_NS: Final = 1_000_000_000
_Credentials = tuple[Credential, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their flags to the parser."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    issued = verbs.add_parser("issue", help="a credential for a host that has none")
    rotated = verbs.add_parser(
        "rotate", help="a new credential for a host; its old ones count until --grace or revoked"
    )
    listed = verbs.add_parser("list", help="all of them, without secrets")
    revoked = verbs.add_parser("revoke", help="make a key count no more; who is connected with it is cut off")
    for verb in (issued, rotated):
        verb.add_argument("name", metavar="HOST", help="the host's name as its agent says it (--host), or a reader's")
        verb.add_argument("--role", type=_role, default=Role.AGENT, help=f"one of {' '.join(Role)} (default: agent)")
        text = "where the host's own file goes, 0600 (default: standard output)"
        verb.add_argument("--out", metavar="FILE", type=Path, help=text)
    text = "the old ones count so much longer (default: until they are revoked)"
    rotated.add_argument("--grace", metavar="SECONDS", type=float, help=text)
    listed.add_argument("--json", action="store_true", help="JSON instead of text")
    revoked.add_argument("key_id", metavar="KEY_ID", help="as 'tocsin token list' shows it")
    for verb in (issued, rotated, listed, revoked):
        add_data_argument(verb)
        text = "the engine's file [env: TOCSIN_CREDENTIALS; default: credentials.json in the data folder]"
        verb.add_argument("--credentials", metavar="FILE", default=os.environ.get("TOCSIN_CREDENTIALS", ""), help=text)


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand and return its exit status."""
    return {"issue": _issue, "rotate": _issue, "list": _list, "revoke": _revoke}[args.verb](args)


def _file(args: argparse.Namespace) -> Path:
    """Return the path of the engine's credentials file."""
    return Path(args.credentials) if args.credentials else credentials_file(data_folder(args.data))


def _issue(args: argparse.Namespace) -> int:
    """Issue a new credential, or rotate a host's, and return the exit status 0."""
    now_ns, is_new = time.time_ns(), args.verb == "issue"
    try:
        fresh = _fresh(args.role, check_holder(args.name, "HOST"), now_ns)
    except FieldError as error:
        raise ConfigError("HOST", args.name, str(error).partition(": must be ")[2]) from None
    if fresh.role in {Role.AGENT, Role.CHECKER} and fresh.name == ANY_NAME:
        raise ConfigError("HOST", args.name, "one host's name: only roles that are no agent's speak for every host")
    until_ns = 0 if is_new or args.grace is None else now_ns + _grace_ns(args.grace)

    def changed(before: _Credentials) -> _Credentials:
        old = [one for one in before if (one.name, one.role) == (fresh.name, fresh.role) and one.is_valid(now_ns)]
        if is_new and old:
            raise ConfigError(
                "HOST", fresh.name, f"without a credential: it has {old[-1].key_id} (tocsin token rotate)"
            )
        if not is_new and not old:
            raise ConfigError("HOST", fresh.name, f"a host with a credential of role {fresh.role} (tocsin token issue)")
        ended = {one.key_id for one in old} if until_ns else set()
        kept = tuple(replace(one, revoked_ns=until_ns) if one.key_id in ended else one for one in before)
        return (*kept, _without_private_key(fresh))

    path = _file(args)
    if args.out is not None and is_new and os.path.lexists(args.out):
        raise ConfigError("--out", str(args.out), "a file that is not there yet: another credential may lie in it")
    if args.out is not None:
        write_credentials(args.out, (fresh,))  # first: a key that nobody holds would be of no use
    change(path, changed)
    if args.out is None:
        print(format_credentials((fresh,)), end="")
    where = f", the host's file is {args.out}" if args.out else ""
    print(f"tocsin token: key {fresh.key_id} of {fresh.role} {fresh.name} is in {path}{where}", file=sys.stderr)
    return 0


def _fresh(role: Role, name: str, now_ns: int) -> Credential:
    """Return a new credential; for a role that signs, a new key pair (which needs the cryptography package)."""
    if role not in SIGNING_ROLES:
        return new_credential(role, name, now_ns)
    from tocsin.pipeline.identity.message_signatures import new_signing_key

    return new_signing_key(role, name, now_ns)


def _without_private_key(fresh: Credential) -> Credential:
    """Return the credential as it is stored in the engine's file: of those who never sign in only the public key."""
    return replace(fresh, secret=b"") if fresh.role in {Role.ENGINE, Role.CONTROLLER} else fresh


def _grace_ns(seconds: float) -> int:
    """Return the grace period in nanoseconds; raise ConfigError if it is out of range."""
    if not 0 <= seconds <= 366 * 86_400:
        raise ConfigError("--grace", seconds, "from 0 to a year of seconds")
    return max(1, round(seconds * _NS))


def _list(args: argparse.Namespace) -> int:
    """Print all credentials without their secrets, and return the exit status 0."""
    path = _file(args)
    credentials = read_credentials(path) if path.exists() else ()
    rows = [_row(one, time.time_ns()) for one in credentials]
    if args.json:
        print(json.dumps(rows))
    elif rows:
        head = {"key_id": "KEY", "role": "ROLE", "name": "HOST", "state": "STATE", "created": "CREATED (UTC)"}
        lines = [{key: str(row[key]) for key in head} for row in rows]
        widths = {key: max(len(line[key]) for line in (head, *lines)) for key in head}
        for line in (head, *lines):
            print("  ".join(line[key].ljust(widths[key]) for key in head).rstrip())
    else:
        print(f"no credentials in {path}")
    return 0


def _row(one: Credential, now_ns: int) -> dict[str, Any]:
    """Return a credential's row of the list."""
    state = (
        "revoked" if not one.is_valid(now_ns) else f"until {_time(one.revoked_ns)} UTC" if one.revoked_ns else "valid"
    )
    return {
        "key_id": one.key_id,
        "role": one.role.value,
        "name": one.name,
        "state": state,
        "created": _time(one.created_ns),
        "created_ns": one.created_ns,
        "revoked_ns": one.revoked_ns,
        "public_key": one.public_key.hex(),
    }


def _time(at_ns: int) -> str:
    """Return a time in nanoseconds as text in UTC."""
    try:
        return f"{datetime.fromtimestamp(at_ns / _NS, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return f"{at_ns} ns"


def _revoke(args: argparse.Namespace) -> int:
    """Revoke a credential from now on, and return the exit status 0."""
    now_ns, path = time.time_ns(), _file(args)

    def changed(before: _Credentials) -> _Credentials:
        found = next((one for one in before if one.key_id == args.key_id), None)
        if found is None:
            raise ConfigError("KEY_ID", args.key_id, f"a key of {path} (tocsin token list)")
        if not found.is_valid(now_ns):
            return before
        return tuple(replace(one, revoked_ns=now_ns) if one is found else one for one in before)

    change(path, changed)
    print(f"key {args.key_id} counts no more")
    return 0


def _role(text: str) -> Role:
    """Parse a role; else an argparse error."""
    try:
        return Role(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: must be one of {' '.join(Role)}") from None
