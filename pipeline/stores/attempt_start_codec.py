"""Starts of attempts as messages of the topic ``ettr``, and back."""

from __future__ import annotations

from typing import Final

from tocsin.pipeline.stores.attempt_starts import AttemptStart, StartStage
from tocsin.pipeline.stores.attempt_time_codec import decode_attempt_time
from tocsin.pipeline.stores.attempt_times import AttemptTime
from tocsin.pipeline.stores.report_codec import MAX_REPORT_BYTES
from tocsin.schemas.errors import DecodeError, FieldError
from tocsin.schemas.kafka.topics import path_key
from tocsin.schemas.records import JobKey
from tocsin.schemas.wire.validate import MAX_ATTEMPT, MAX_SECONDS, UINT32_MAX, ObjectReader, dump_json, load_json

_PATH: Final = "startup"
_STAGES: Final = "stages"


def attempt_start_key(told: AttemptStart) -> bytes:
    """Return the Kafka key of a start; the later one of two with the same key replaces the other."""
    return path_key(told.job.cluster, told.job.job_id, str(told.job.attempt), str(told.began_ns), _PATH)


def encode_attempt_start(told: AttemptStart) -> bytes:
    """Return the message with a start; equal starts give equal bytes."""
    return dump_json(
        {
            "cluster": told.job.cluster,
            "job_id": told.job.job_id,
            "attempt": told.job.attempt,
            "began_ns": told.began_ns,
            "train_ns": told.train_ns,
            "told_ns": told.told_ns,
            "hosts": told.host_count,
            "gpus": told.gpu_count,
            "over_ns": told.over_ns,
            "failed": told.is_failed,
            _STAGES: [
                {
                    "start_kind": one.start_kind,
                    "stage": one.stage,
                    "begin_ns": one.begin_ns,
                    "end_ns": one.end_ns,
                    "hosts": one.host_count,
                    "open": one.open_count,
                    "lost": one.lost_count,
                    "median_seconds": one.median_seconds,
                    "slowest": [one.slowest_host, one.slowest_begin_ns, one.slowest_end_ns],
                    "last_host": one.last_host,
                    "gpu_ns": [one.saved_gpu_ns, one.own_gpu_ns, one.waiting_gpu_ns],
                    "cache_hit_ratio": one.cache_hit_ratio,
                }
                for one in told.stages
            ],
        },
        _PATH,
    )


def decode_account(data: bytes) -> AttemptTime | AttemptStart:
    """Return what a message of the topic ``ettr`` says: an account of an attempt's time, or of one of its starts.

    Raises:
        DecodeError: the bytes are no JSON, or more than ``MAX_REPORT_BYTES``.
        FieldError: a field has a wrong value, or the stages have more GPU time than the start.
    """
    if len(data) > MAX_REPORT_BYTES:
        raise DecodeError(f"ettr: {len(data)} bytes, at most {MAX_REPORT_BYTES}")
    values = load_json(data, "ettr")
    if not isinstance(values, dict) or _STAGES not in values:
        return decode_attempt_time(data)
    told = ObjectReader(values, _PATH)
    found = AttemptStart(
        job=JobKey(told.name("cluster"), told.name("job_id"), told.integer("attempt", 0, MAX_ATTEMPT)),
        began_ns=told.integer("began_ns", 0),
        train_ns=told.integer("train_ns", 0),
        told_ns=told.integer("told_ns", 0),
        host_count=told.integer("hosts", 0, UINT32_MAX),
        gpu_count=told.integer("gpus", 0, UINT32_MAX),
        stages=tuple(map(_stage, told.objects(_STAGES))),
        over_ns=told.integer("over_ns", 0) if told.has("over_ns") else 0,  # absent in older messages
        is_failed=told.boolean("failed") if told.has("failed") else False,
    )
    if found.untold_gpu_ns < 0:
        raise FieldError(told.field(_STAGES), len(found.stages), f"at most {found.gpu_ns} GPU-ns together")
    return found


def _stage(told: ObjectReader) -> StartStage:
    """Return one stage of a message."""
    slowest = told.items("slowest")
    if len(slowest) != 3 or type(slowest[0]) is not str:
        raise FieldError(told.field("slowest"), slowest, "a host, its begin and its end")
    begin_ns, end_ns = ObjectReader({"slowest": slowest[1:]}, told.path).integers("slowest", 0)
    gpu_ns = told.integers("gpu_ns", 0)
    if len(gpu_ns) != 3:
        raise FieldError(told.field("gpu_ns"), list(gpu_ns), "three numbers: saved, own, waiting")
    return StartStage(
        start_kind=told.name("start_kind"),
        stage=told.name("stage"),
        begin_ns=told.integer("begin_ns", 0),
        end_ns=told.integer("end_ns", 0),
        host_count=told.integer("hosts", 0, UINT32_MAX),
        open_count=told.integer("open", 0, UINT32_MAX),
        lost_count=told.integer("lost", 0, UINT32_MAX),
        median_seconds=told.optional_number("median_seconds", 0.0, MAX_SECONDS),
        slowest_host=slowest[0],
        slowest_begin_ns=begin_ns,
        slowest_end_ns=end_ns,
        last_host=told.optional_name("last_host"),
        saved_gpu_ns=gpu_ns[0],
        own_gpu_ns=gpu_ns[1],
        waiting_gpu_ns=gpu_ns[2],
        cache_hit_ratio=told.optional_number("cache_hit_ratio", 0.0, 1.0),
    )
