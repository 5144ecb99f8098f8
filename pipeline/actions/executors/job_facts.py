"""What a job controller says of its jobs: facts that it signed, as they travel (docs/job-controller.md)."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from tocsin.pipeline.identity.action_signatures import AckSigner
from tocsin.schemas.action_codec import encode_event
from tocsin.schemas.action_events import JobFacts
from tocsin.schemas.errors import FieldError, TargetAnswerError

PATH: Final = "/v1/facts"
MOST_FACTS: Final = 100
"""Most jobs in one answer."""
MOST_BYTES: Final = 5_000
"""Longest signed fact over HTTP; an engine's listener takes no longer message. Longer ones go to the topic."""
_NAMES: Final = ("value", "signature")


@dataclass(frozen=True, slots=True)
class SignedFact:
    """One fact as it was signed.

    Attributes:
        value: the bytes that were signed.
        signature: the signature header.
    """

    value: bytes
    signature: bytes


def signed_fact(signer: AckSigner, told: JobFacts) -> SignedFact:
    """Return a fact with the signature of a job controller.

    Args:
        signer: signs with a credential of role ``scheduler``.
        told: what is said of one job.

    Raises:
        FieldError: a field has a value that nobody would accept.
    """
    value = encode_event(told)
    return SignedFact(value, signer.header(value))


def facts_body(facts: Iterable[SignedFact]) -> bytes:
    """Return the body of an answer to ``GET /v1/facts``."""
    lines = [
        {"value": base64.b64encode(one.value).decode(), "signature": one.signature.decode("ascii")} for one in facts
    ]
    return json.dumps({"facts": lines}).encode()


def read_facts(body: bytes) -> list[SignedFact]:
    """Return the facts in a body; whether a signature is right is for the controller to find out.

    Raises:
        TargetAnswerError: the body is no such answer, or has too many or too long facts.
    """
    try:
        found = json.loads(body)
        lines = found["facts"]
        if not isinstance(lines, list) or len(lines) > MOST_FACTS:
            raise FieldError("facts", lines, f"a list of at most {MOST_FACTS}")
        return [_fact_of(number, line) for number, line in enumerate(lines)]
    except (ValueError, KeyError, TypeError) as error:
        words = " ".join(body[:200].decode(errors="replace").split())
        text = f"the job controller's facts cannot be read: {type(error).__name__}: {error}: {words}"
        raise TargetAnswerError(text) from error
    except FieldError as error:
        raise TargetAnswerError(f"the job controller's facts cannot be read: {error}") from error


def _fact_of(number: int, line: Any) -> SignedFact:
    """Return one fact; raise an error that names the field otherwise."""
    value, signature = (line[name] for name in _NAMES)
    if type(value) is not str or type(signature) is not str or not signature.isascii():
        raise FieldError(f"facts[{number}]", line, "value and signature, each a text")
    data = base64.b64decode(value, validate=True)
    if len(data) > MOST_BYTES:
        raise FieldError(f"facts[{number}].value", f"{len(data)} bytes", f"at most {MOST_BYTES} bytes")
    return SignedFact(data, signature.encode("ascii"))
