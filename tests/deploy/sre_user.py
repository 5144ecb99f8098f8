"""Runs statements as the user of ``deploy/clickhouse/users.d/tocsin-sre.xml``: a process of its own, as chDB needs it.

``python -m tests.deploy.sre_user FOLDER`` reads a JSON list of statements and prints the answers in their order: the
number of rows, or the error. chDB has one user, ``default``. So ``default`` gets all that the file gives
``tocsin_sre``, but its password and its network.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from tests.deploy import files

FILE = files.DEPLOY / "clickhouse" / "users.d" / "tocsin-sre.xml"
NAME = "tocsin_sre"


def users_of(shipped: Path) -> str:
    """Return chDB's file of users, with the shipped user's profile and grants for ``default``."""
    root = ET.fromstring(shipped.read_text("utf-8"))  # our own file
    user = root.find(f"users/{NAME}")
    assert user is not None
    made = ET.Element("clickhouse")
    profiles = ET.SubElement(made, "profiles")
    ET.SubElement(profiles, "default")  # a server has one, and uses it for its own work
    profiles.extend(copy.deepcopy(one) for one in root.findall("profiles/*"))
    ET.SubElement(ET.SubElement(made, "quotas"), "default")
    default = ET.SubElement(ET.SubElement(made, "users"), "default")
    ET.SubElement(default, "password")
    ET.SubElement(ET.SubElement(default, "networks"), "ip").text = "::/0"
    default.extend(one for one in user if one.tag not in {"password_sha256_hex", "networks"})
    return ET.tostring(made, encoding="unicode")


def main() -> int:
    """Answer each statement in a connection of its own."""
    from chdb.session import Session  # the database is opened by this process only

    folder = Path(sys.argv[1])
    (folder / "users.xml").write_text(users_of(FILE))
    config = f"<clickhouse><users_config>{folder / 'users.xml'}</users_config></clickhouse>"
    (folder / "config.xml").write_text(config)
    session: Any = Session(f"{folder / 'db'}?config-file={folder / 'config.xml'}")  # type: ignore[no-untyped-call]  # the package has no types
    answers = []
    for statement in json.load(sys.stdin):
        try:
            answer = session.query(statement, "JSONEachRow").bytes() or b""
            answers.append(str(len(answer.splitlines())))
        except RuntimeError as error:
            answers.append(str(error))
    sys.stdout.write(json.dumps(answers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
