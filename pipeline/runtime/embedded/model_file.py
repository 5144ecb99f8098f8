"""Store the embedded engine's announced models in a file, so that a restarted engine continues with them.

Flink jobs do not need this, because their topic is compacted and kept forever.
"""

from __future__ import annotations

import base64
import json
import logging
import os
from pathlib import Path

from tocsin.pipeline.runtime.model_schedule import ModelSchedule
from tocsin.schemas.errors import EngineError, SchemaError
from tocsin.schemas.private_files import make_private_folder, write_private

_LOG = logging.getLogger("tocsin.models")
FILE_NAME = "announced-models.json"


class ModelFile:
    """The file with the announced models, rewritten whenever the schedule changes."""

    def __init__(self, file: Path, book: ModelSchedule) -> None:
        """Load the file's models into the schedule.

        Raises:
            EngineError: the file is damaged.
        """
        self._file = file
        self._book = book
        try:
            found = json.loads(file.read_text(encoding="utf-8"))["announcements"]
            book.load([base64.b64decode(text, validate=True) for text in found])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, SchemaError) as error:
            mend = "remove it, and announce the models again"
            raise EngineError(f"{file} cannot be read ({error}): it names the models in use; {mend}") from error
        self._written = book.records()

    def keep(self) -> None:
        """Write the schedule to the file if it changed; a failure is only logged."""
        records = self._book.records()
        if records == self._written:
            return
        self._written = records
        new = self._file.with_suffix(".new")
        texts = [base64.b64encode(data).decode() for data in records]
        try:
            make_private_folder(self._file.parent)
            write_private(new, json.dumps({"version": 1, "announcements": texts}).encode())
            os.replace(new, self._file)  # noqa: PTH105  # either the old file or the new one, whatever happens
        except OSError as error:  # a full disk must not stop the judging
            _LOG.warning("cannot remember models", extra={"file": str(self._file), "error": str(error)})
