"""The request ``places`` of the control socket: where the ranks of a job run, and in which groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from tocsin.pipeline.runtime.embedded.control_socket import EngineRefusedError, Handler, Message
from tocsin.schemas.records import CommGroup, JobKey, RankPlace

Places = Callable[[str], tuple[JobKey, tuple[RankPlace, ...], tuple[CommGroup, ...]] | None]
"""Function from the name of a job to its newest attempt, places and groups; None: not known."""


def places_handler(places: Places) -> Handler:
    """Return the handler of ``{"job_id"}``; the answer has ``job_id``, ``attempt``, ``places`` and ``groups``.

    A place and a group are objects with the fields of ``RankPlace`` and ``CommGroup``.
    """

    def answer(request: Message) -> Message:
        job_id = request.get("job_id")
        if not isinstance(job_id, str) or not job_id:
            raise EngineRefusedError('places needs "job_id" as text', "bad_request")
        found = places(job_id)
        if found is None:
            raise EngineRefusedError(f"the engine knows no job {job_id!r}", "unknown_job")
        job, ranks, groups = found
        return {
            "job_id": job.job_id,
            "attempt": job.attempt,
            "places": [asdict(place) for place in ranks],
            "groups": [asdict(group) for group in groups],
        }

    return answer
