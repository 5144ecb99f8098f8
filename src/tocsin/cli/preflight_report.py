"""Tells the controller of actions what a preflight found, so that a machine that passed comes back."""

from __future__ import annotations

import argparse
import base64
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tocsin.cli.engine_reader import add_engine_arguments, reader_of
from tocsin.cli.identity import signer_of
from tocsin.cli.kafka import add_kafka_arguments, settings_of
from tocsin.cli.operator_channel import is_over_kafka
from tocsin.schemas.action_codec import encode_event
from tocsin.schemas.action_events import CheckResult
from tocsin.schemas.check_results import check_result_of
from tocsin.schemas.credentials import Role
from tocsin.schemas.errors import ConfigError, EngineError
from tocsin.schemas.preflight import HostAnswer
from tocsin.schemas.wire.validate import INT64_MAX

if TYPE_CHECKING:
    from tocsin.pipeline.actions.executors.client import EngineChannel
    from tocsin.pipeline.identity.action_signatures import AckSigner


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags with which the result is told to a controller."""
    text = "tell the controller of actions the result, signed: a machine that passed every check comes back"
    parser.add_argument("--report", action="store_true", help=text)
    text = "cluster of the machines, with --report (default: default)"
    parser.add_argument("--cluster", metavar="NAME", default="default", help=text)
    parser.add_argument("--verdict", metavar="ID", default="", help="verdict for which this is checked, with --report")
    add_engine_arguments(parser, (Role.EXECUTOR,))
    add_kafka_arguments(parser, text="with --report: over the topics of these brokers, also in an operator's name")


class CheckReporter:
    """Signs results and sends them."""

    def __init__(self, channel: EngineChannel, signer: AckSigner, name: str) -> None:
        """Send nothing yet.

        Args:
            channel: an engine, or the topics.
            signer: signs the results.
            name: holder of the signer's credential, who answers for the results.
        """
        self._channel = channel
        self._signer = signer
        self._name = name

    def send(self, results: Sequence[CheckResult]) -> None:
        """Send results.

        Raises:
            EngineError: nobody answers, or a result is refused.
        """
        messages = []
        for one in results:
            value = encode_event(one)
            pair = {"value": value, "signature": self._signer.header(value)}
            messages.append({name: base64.b64encode(data).decode() for name, data in pair.items()})
        answer = self._channel.call("executor_exchange", executor=self._name, after=INT64_MAX, messages=messages)
        if refused := answer.get("refused"):
            raise EngineError(f"the engine refuses the result: {', '.join(map(str, refused))}")


def reporter_of(args: argparse.Namespace) -> CheckReporter | None:
    """Return what tells the results, None without ``--report``.

    Raises:
        ConfigError: no controller is named, or no credential.
        CredentialError: the file of the credential cannot be used.
    """
    if not args.report:
        return None
    from tocsin.pipeline.identity.action_signatures import AckSigner

    is_topic = is_over_kafka(args)
    signer = signer_of(args, *((Role.EXECUTOR, Role.OPERATOR) if is_topic else (Role.EXECUTOR,)))
    if signer is None or not (is_topic or args.engine):
        must = "the engine's address, or --kafka, with --token-file (tocsin token issue NAME --role executor)"
        raise ConfigError("--report", args.engine, must)
    if is_topic:
        from tocsin.pipeline.kafka.action_exchange import KafkaExchange

        exchange = KafkaExchange(settings_of(args), args.topic_prefix)
        return CheckReporter(exchange, AckSigner(signer), signer.name)
    reader = reader_of(args, (Role.EXECUTOR,))
    assert reader is not None, "an engine is named"  # noqa: S101
    return CheckReporter(reader, AckSigner(signer), signer.name)


def results_of(answers: Sequence[HostAnswer], cluster: str, verdict_id: str, now_ns: int) -> list[CheckResult]:
    """Return the results of hosts as the controller is told them.

    Args:
        answers: the hosts' answers.
        cluster: their cluster.
        verdict_id: verdict for which they were checked, "" for none.
        now_ns: the present time.
    """
    return [check_result_of(answer, cluster, verdict_id, now_ns) for answer in answers]


def report(reporter: CheckReporter, answers: Sequence[HostAnswer], args: argparse.Namespace) -> None:
    """Tell the controller the hosts' answers.

    Raises:
        EngineError: nobody answers, or a result is refused.
    """
    reporter.send(results_of(answers, args.cluster, args.verdict, time.time_ns()))
