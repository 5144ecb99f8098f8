"""Settings and named reasons of the fleet view."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.schemas.reasons import NamedReason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind

HOUR_NS = 3600 * NS_PER_SECOND
DAY_NS = 24 * HOUR_NS


class FleetReason(NamedReason):
    """Reason for which the fleet view opens, changes or closes an incident."""

    CERTAIN_SIGNAL = "certain_signal_when_idle", "A machine without a job reports a fault that takes a reboot to leave."
    LASTING_SIGNAL = "lasting_signal_when_idle", "A machine without a job reports the same fault again and again."
    MANY_HOSTS = "many_hosts_same_signal", "More machines report the same than independent faults could explain."
    MORE_HOSTS = "more_hosts", "Twice as many machines give the signal as were told of last."
    COVERED = "covered_by_fleet_incident", "Many machines report the same: the fleet's incident stands for this one."
    REPEAT_OFFENDER = "repeat_offender", "Faults of this machine were upheld again and again, by people or by checks."
    LATE_IN_STARTS = (
        "late_in_starts_of_jobs",
        "The machine was late in the same stage of the start in three of its last five starts, in several jobs.",
    )
    STARTS_IN_TIME = "starts_in_time", "The machine was not late in its latest start."
    SIGNAL_GONE = "signal_gone", "No machine has reported the signal for longer than chance explains."
    WORKS_AGAIN = "works_under_load", "The machine runs a job again, for long enough, and does not report it any more."
    HOST_SAYS_WELL = "host_says_well", "The part that was reported as broken is reported as well."
    WORK_ENDED = "planned_work_ended", "The planned work has ended; a fault that was not taken back counts now."
    BOOTED = (
        "started_under_planned_work",
        "The machine's agent began anew under planned work, and the fault is not back.",
    )
    DENIED = "denied_by_human", "A person says that the verdict was wrong."
    NO_NEWS = "no_news_for_long", "Nothing was heard of it for long: it lapses, and may be true."


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """Settings.

    Attributes:
        faults_per_machine_day: rate of independent faults. Llama 3's training counted 419 interruptions of all kinds in
            54 days on 2,048 machines, 0.0038 a machine and day.
        share_margin_ratio: a site's share of one cause in all faults is at most so many times that of the table
            (``SHARE_RATIO``), which was counted elsewhere.
        chance_ratio: a number of machines is no coincidence if independent faults reach it with less than this
            probability. With 50 signals, four windows and daily looks that is one false alarm in some 14 years.
        windows_ns: spans over which machines with the same signal are counted.
        min_hosts_count: fewer machines never make a fleet incident.
        leaf_window_ns: span in which the machines behind one leaf switch count as failing together.
        leaf_share_ratio: share of a leaf's known machines that must report it.
        sample_count: samples of a signal that may pass by itself until it is believed of an idle machine.
        lasting_ns: time that these samples must span.
        sample_gap_ns: longest distance of two samples that still count as consecutive.
        oldest_ns: events older than this at their arrival open nothing: a collector replays an old log.
        works_ns: a machine is well after it has run a job for so long without the signal.
        silent_ns: a host that was not heard for this long is silent.
        least_quiet_ns: a fleet incident lasts at least so long after its last signal ...
        most_quiet_ns: ... and at most so long.
        host_lapse_ns: a host's incident of which nothing is heard for so long expires.
        repeat_ns: time within which upheld verdicts of a host count together.
        repeat_count: upheld verdicts that make a repeat offender.
        repeat_action: action proposed for a repeat offender.
        late_starts_count: a host that was late in the same stage in so many of its last starts is told of ...
        starts_of_count: ... where so many starts are looked at.
        renew_ns: distance of two renewals; a line's expiry lies two of them ahead.
        max_hosts_count: hosts that are remembered.
        max_signals_count: signals that are remembered.
        max_covered_count: verdicts whose fleet incident is remembered; as many verdicts are remembered for feedback.
    """

    faults_per_machine_day: float = 0.004
    share_margin_ratio: float = 3.0
    chance_ratio: float = 1e-6
    windows_ns: tuple[int, ...] = (HOUR_NS, DAY_NS, 7 * DAY_NS, 30 * DAY_NS)
    min_hosts_count: int = 4
    leaf_window_ns: int = 600 * NS_PER_SECOND
    leaf_share_ratio: float = 0.5
    sample_count: int = 3
    lasting_ns: int = 60 * NS_PER_SECOND
    sample_gap_ns: int = 600 * NS_PER_SECOND
    oldest_ns: int = 300 * NS_PER_SECOND
    works_ns: int = 1800 * NS_PER_SECOND
    silent_ns: int = 120 * NS_PER_SECOND
    least_quiet_ns: int = DAY_NS
    most_quiet_ns: int = 7 * DAY_NS
    host_lapse_ns: int = 7 * DAY_NS
    repeat_ns: int = 30 * DAY_NS
    repeat_count: int = 2
    repeat_action: ActionKind = ActionKind.DRAIN
    late_starts_count: int = 3
    starts_of_count: int = 5
    renew_ns: int = HOUR_NS // 2
    max_hosts_count: int = 20_000
    max_signals_count: int = 256
    max_covered_count: int = 20_000
