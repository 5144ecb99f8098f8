"""Sentences for a Kafka client's errors, and a log handler that keeps the client's log off the terminal.

Errors are recognised by their names and texts, so this module imports no Kafka client.
"""

from __future__ import annotations

import logging
import re
from typing import Final

_MEANINGS: Final = (
    ("SaslAuthenticationFailedError", "the broker refuses the user or the password: see --kafka-config"),
    ("IllegalSaslStateError", "this listener takes no login: see security_protocol in --kafka-config"),
    ("UnsupportedSaslMechanismError", "the broker's listener does not take this sasl_mechanism: see --kafka-config"),
    ("CERTIFICATE_VERIFY_FAILED", "the broker's certificate is not trusted: see ssl_ca_file in --kafka-config"),
    ("ALERT_BAD_CERTIFICATE|CERTIFICATE_REQUIRED", "the broker wants a client certificate: see ssl_certificate_file"),
    ("SSL", "no TLS with this listener: see security_protocol in --kafka-config"),
    ("UnknownTopicOrPartitionError", "a topic is missing: run 'tocsin topics apply'"),
    ("TopicAuthorizationFailedError", "this user may not use the topic: grant it on the broker"),
    ("ClusterAuthorizationFailedError", "this user may not do that on the cluster: grant it on the broker"),
    ("GroupAuthorizationFailedError", "this user may not use the consumer group: grant it on the broker"),
    ("InvalidTimestampError", "a record is stamped ahead of the broker's clock: see 'topics apply --retain-forever'"),
    ("NotEnoughReplicas", "too few replicas of the topic are in sync"),
    ("ECONNREFUSED", "no broker listens there"),
    ("DNS", "the broker's name is not known"),
    # the broker ends a refused login, and a listener of another protocol, without a word
    ("socket disconnected", "the broker hangs up: wrong user, password or security_protocol? see --kafka-config"),
)
"""Rows: (pattern in the error, sentence that says what to do), the most specific first."""

_EMPTY_WORDS: Final = re.compile(r"^Bootstrap failed|not ready; waiting|in the clear|Closing connection")
_CHANGING: Final = re.compile(r" ?\(backoff [\d.]+ secs\)|<-\d+")
"""Parts of a message that vary; they are removed so that the same error gives the same text, which is logged once."""
_MOST_CHARACTERS: Final = 240


def _rank(text: str) -> int:
    """Return how specific a text is: the index of its row in ``_MEANINGS``, 0 is best; their number if none matches."""
    for rank, (pattern, _) in enumerate(_MEANINGS):
        if re.search(pattern, text):
            return rank
    return len(_MEANINGS)


def sentence(error: BaseException, last_words: str = "") -> str:
    """Return an error as one sentence that says what to do, where that is known.

    Args:
        error: the exception that the client raised.
        last_words: the client's own last warning (``LastWords.text``). A client that cannot connect raises only a
            timeout and gives the cause only there.
    """
    name, message = type(error).__name__, " ".join(str(error).split())
    own = message if message.startswith((name, "[Error")) else f"{name}: {message}"
    text = last_words if last_words and _rank(last_words) <= _rank(own) else own
    rank = _rank(text)
    if rank < len(_MEANINGS):
        return f"{_MEANINGS[rank][1]} ({text[:_MOST_CHARACTERS]})"
    return text[:_MOST_CHARACTERS]


class LastWords(logging.Handler):
    """Log handler that keeps the Kafka client's most specific warning instead of printing hundreds.

    The client's debug messages stay off at any log level, because they contain requests, logins included.
    """

    def __init__(self) -> None:
        """Start with an empty text."""
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message as ``text`` unless a more specific one is kept."""
        text = " ".join(_CHANGING.sub("", record.getMessage()).split())
        if not _EMPTY_WORDS.search(text) and (not self.text or _rank(text) <= _rank(self.text)):
            self.text = text

    def clear(self) -> None:
        """Forget the kept message."""
        self.text = ""


_WORDS: Final = LastWords()


def hush_kafka() -> LastWords:
    """Keep the client's log off the terminal and return the handler with its last warning, one per process."""
    client = logging.getLogger("kafka")
    if _WORDS not in client.handlers:
        client.addHandler(_WORDS)
        client.setLevel(logging.WARNING)
        client.propagate = False
    return _WORDS
