"""What a Kafka client's errors mean, in sentences; and its own log, which is kept from the terminal.

Errors are known by their names and texts: this module imports no Kafka client.
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
"""(pattern, meaning), the most telling first."""

_EMPTY_WORDS: Final = re.compile(r"^Bootstrap failed|not ready; waiting|in the clear|Closing connection")
_CHANGING: Final = re.compile(r" ?\(backoff [\d.]+ secs\)|<-\d+")
"""Left out: the same trouble must give the same words, which are logged once."""
_MOST_CHARACTERS: Final = 240


def _rank(text: str) -> int:
    """How telling a text is: its place in ``_MEANINGS``, 0 is best."""
    for rank, (pattern, _) in enumerate(_MEANINGS):
        if re.search(pattern, text):
            return rank
    return len(_MEANINGS)


def sentence(error: BaseException, last_words: str = "") -> str:
    """Return an error as a sentence that says what to do, where that is known.

    Args:
        error: what the client raised.
        last_words: the client's own last warning (``LastWords.text``): a client that cannot connect
            raises nothing but a timeout, and says why only there.
    """
    name, said = type(error).__name__, " ".join(str(error).split())
    own = said if said.startswith((name, "[Error")) else f"{name}: {said}"
    told = last_words if last_words and _rank(last_words) <= _rank(own) else own
    rank = _rank(told)
    if rank < len(_MEANINGS):
        return f"{_MEANINGS[rank][1]} ({told[:_MOST_CHARACTERS]})"
    return told[:_MOST_CHARACTERS]


class LastWords(logging.Handler):
    """Keeps the Kafka client's most telling warning instead of printing hundreds of them.

    The client's debug messages stay off whatever the log level: they hold requests, and a login is one.
    """

    def __init__(self) -> None:
        """Nothing was said yet."""
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it, unless something more telling is kept."""
        text = " ".join(_CHANGING.sub("", record.getMessage()).split())
        if not _EMPTY_WORDS.search(text) and (not self.text or _rank(text) <= _rank(self.text)):
            self.text = text

    def clear(self) -> None:
        """Forget it: what comes next is about something else."""
        self.text = ""


_WORDS: Final = LastWords()


def hush_kafka() -> LastWords:
    """Keep the client's log from the terminal; return what holds its last warning, one for the process."""
    client = logging.getLogger("kafka")
    if _WORDS not in client.handlers:
        client.addHandler(_WORDS)
        client.setLevel(logging.WARNING)
        client.propagate = False
    return _WORDS
