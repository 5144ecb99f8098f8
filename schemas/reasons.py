"""Named reasons: every decision carries one, as log field, metric label and test expectation."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class NamedReason(StrEnum):
    """A reason: its value is stored and sent, and ``meaning`` is its explanation for people."""

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> Self:
        """Create a member from its value and its meaning."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member


class Reason(NamedReason):
    """Reason for which a verdict was opened, changed, or not opened."""

    # a verdict opens
    FIRST_FATAL_EXIT = "first_fatal_exit", "The first process to die, and its death is not explained by another's."
    PROCESSES_GONE_FIRST = (
        "processes_gone_first",
        (
            "Its GPU memory was free before the others', whose processes then died for want of a peer; it reported "
            "nothing."
        ),
    )
    LOST_BY_ALL_OTHERS = (
        "lost_by_all_others",
        "All other ranks died of a lost connection; this machine's gave no sign of life since, and nobody told why.",
    )
    PROGRAM_ERROR_EVERYWHERE = (
        "program_error_everywhere",
        "Several ranks died of their own error at about the same time: nobody is singled out.",
    )
    PROCESS_STOPPED_PEERS_WAIT = (
        "process_stopped_peers_wait",
        "The rank's process is stopped and its peers wait for it in a collective.",
    )
    NEVER_ARRIVED = "never_arrived", "The peers wait in a collective that this rank has not entered."
    ENTERED_OTHER_COLLECTIVE = (
        "entered_other_collective",
        "The rank stands in another collective than its peers at the same place of the order.",
    )
    STUCK_WHERE_PEERS_FINISHED = "stuck_where_peers_finished", "Unfinished with a collective that its peers finished."
    TRANSFER_STALLED = (
        "transfer_stands_at_machine",
        "All are in the collective, no chunk moves, and those of one machine lie where they should not.",
    )
    NOBODY_WAITS = "nobody_waits", "No rank waits for another: this is no hang in communication."
    SILENT_AND_PEERS_STALLED = (
        "silent_and_peers_stalled",
        "The host fell silent and its peers stopped making steps with it.",
    )
    SAME_RANK_SLOWEST = (
        "same_rank_slowest_every_window",
        "The same rank is slowest in nearly all steps and the others wait for it.",
    )
    OWN_LOADER_SLOW = "own_loader_slow", "One rank's waiting for data explains why it is slowest."
    ALL_LOADERS_SLOW = "all_loaders_slow", "All ranks wait for data together: a shared service."
    SOURCE_SLOW = "source_slow", "All readers of one source of data wait for it, readers of other sources do not."
    LONGER_DATA = "longer_data", "A rank's told lengths explain why it computes longer: its data are longer."
    LOADER_RESTARTED = "loader_restarted", "A data loader failed and began anew."
    JOB_WIDE_SLOWDOWN = "job_wide_slowdown", "All ranks slowed down together: nobody is at fault."
    NUMBERS_JUMPED = "numbers_jumped", "The job's loss or gradient norm is five times its past, on all ranks alike."
    STEPS_GROW = "steps_grow", "The job's steps became longer little by little, on all ranks alike."
    MFU_DECLINED = "mfu_declined", "The job's FLOPs utilization fell by a tenth of its best, and nothing explains it."
    LATE_IN_STARTUP = "late_in_startup", "A host takes much longer than its peers for a stage of the job's start."
    LATE_IN_STARTS = "late_in_starts", "A host was late in the same stage in three of the job's last five starts."
    STARTUP_SLOW_ON_ALL = "startup_slow_on_all", "A stage of a start is slow on all hosts or on many: what they share."
    SLOW_FORWARD = "slow_forward", "A host's forward pass became longer than its peers'; the steps hardly show it."
    LONG_STAGE = "long_stage", "One pipeline stage computes longer than the others on every replica."
    LONG_TRANSFERS = "long_transfers", "Transfers take longer than usual once all members have come."
    GROUPS_ACROSS_SLOW = "groups_across_slow", "Only transfers across minipods are slow, by past or equals."
    SLOWEST_RANK_CHANGES = "slowest_rank_changes", "The slowest rank is another in each step: data or software jitter."
    GROUPS_OF_RANK_SLOW = (
        "all_groups_of_rank_slow",
        "All groups that contain this rank move data slower, the others do not.",
    )
    CHUNKS_PILE_UP = (
        "chunks_pile_up",
        "The job is slower, and the chunks of its open transfers lie at the senders of one machine (or switch).",
    )
    PFC_CONGESTED = (
        "all_behind_switch_jammed",
        "The job is slower since all hosts behind one leaf switch send pause frames, and none behind the others does.",
    )
    MINIPOD_CONGESTED = "all_of_minipod_jammed", "All hosts of a minipod send pause frames; the job is slower since."
    HARDWARE_EVENT = "hardware_event", "The machine reports that a part of it broke."
    METRICS_DIFFER_STEPS_SLOWER = (
        "metrics_differ_and_steps_slower",
        "One machine's metrics differ from its peers', and the job's steps are slower since.",
    )
    METRICS_DIFFER = (
        "metrics_differ_for_long",
        "One machine's metrics differ from its peers' for long; there are no steps that show whether it hurts.",
    )
    DIFFERS_WHILE_JOB_STALLED = (
        "differs_while_job_stands",
        "The machines of the job stand still, and one of them is not where the others wait.",
    )
    SAME_HOST_HOLDS_UP_PHASE = (
        "same_host_holds_up_phase",
        "One machine's checkpoint (or evaluation) takes much longer than everybody's, again and again, and all wait.",
    )
    LOSS_JUMPS_ALONE = (
        "loss_jumps_alone",
        "The loss of one machine's ranks alone jumps again and again, and everybody's gradient norm with it.",
    )
    GRADIENT_JUMPS_ALONE = (
        "gradient_jumps_alone",
        "The gradient norm of one machine's ranks alone, before it meets the others', jumps again and again.",
    )
    NAN_FIRST_BY_STEP = (
        "nan_first_by_step",
        "This rank was the only one without a number at the first step that had one.",
    )
    NAN_EVERYWHERE = "nan_everywhere", "All ranks lost their numbers in the same step: nobody is singled out."
    NAN_SAME_STEP_AGAIN = (
        "nan_same_step_again",
        (
            "The step that had no number before the job went back has none again: the data or the model's state is to "
            "blame, and no machine."
        ),
    )
    NAN_SOON_ELSEWHERE = (
        "nan_soon_elsewhere",
        (
            "Another machine than before lost its numbers, few steps from there or right after the job went back: the "
            "model's state is more likely to blame than two machines."
        ),
    )
    LEARNED_DETECTOR_DIFFERS = "learned_detector_differs", "A learned detector that may accuse alone names the machine."
    JOB_STALLED_UNEXPLAINED = (
        "job_stalled_unexplained",
        "The job stands still beyond its patience and the evidence names nobody.",
    )
    JOB_SILENT = "job_silent", "All hosts of a job fell silent together."

    # a verdict changes
    STILL_TRUE = "still_true", "The verdict holds as before; nothing new is said."
    FLAPPING = (
        "comes_and_goes",
        "It is well now, was slow again and again of late, and will hardly stay well: no machine is taken away for it.",
    )
    ONE_WITNESS = (
        "one_witness",
        "Too few saw it for a machine to be taken away: one host's word, program text, or a job of two machines.",
    )
    RECOVERED = "recovered", "What was seen has gone for as long as it took to be believed."
    NEW_NORMAL = "new_normal", "The job has been slower for so long (30 minutes) that this is its normal pace now."
    MFU_EXPLAINED = "mfu_explained", "Another finding explains why the job's FLOPs utilization fell."
    JOB_ENDED = "job_ended", "All processes of the job are gone, or it ended in order."
    CLOSED_BY_HUMAN = "closed_by_human", "A person closed the incident; the evidence says who, and why."
    NEW_ATTEMPT = "new_attempt", "The job began a new attempt and makes steps."
    EXPIRED = "expired", "Nobody renewed the verdict before its expiry."
    ENGINE_RESTARTED = "engine_restarted", "The engine that held the verdict is gone: nobody would ever update it."
    OPERATOR_FAILED = (
        "operator_failed",
        "An operator raised in this job's turn: the job began anew, and what still holds will be said again.",
    )
    CLOCK_JUMPED = (
        "clock_jumped",
        "The engine's own clock was set: all jobs began anew at the new time, and what still holds will be said again.",
    )
    CANARY = "canary", "Says nothing of a job: it measures the way from a slice's end to the incident tables."

    # a hard action waits (the row in ``actions``, never the verdict)
    ENGINE_YOUNG = (
        "engine_young",
        "The engine began a few minutes ago, and not from a snapshot: it knows little of what is normal.",
    )
    PLACES_CHANGED = (
        "places_changed",
        "The machine's ranks were moved a few minutes ago: what it shows may be the move.",
    )
    MODEL_CHANGED = "model_changed", "The job's detectors were given another model a few minutes ago."

    # no verdict
    TOO_FEW_PEERS = "too_few_peers", "Below three peers of a role a comparison cannot say which one moved."
    TOO_FEW_OPERATIONS = (
        "too_few_operations",
        "Too few operations in a window (or all of them take no time): their distribution is chance.",
    )
    BAD_NUMBER = "bad_number", "A time that cannot be: negative, infinite, or not a number."
    SOURCES_MISSING = (
        "sources_missing",
        "The job does not measure phases or run operations that the detector's model was trained on.",
    )
    NO_MODEL = "no_model", "The detector speaks only with a trained model: train one (tocsin train) and announce it."
    GPU_PEAK_UNKNOWN = "gpu_peak_unknown", "The peak FLOP/s of a GPU is in no table: the job's MFU is unknown."
    FRAME_SHAPE_MISMATCH = (
        "misfit_frame",
        "A metric frame of another size than its table says is left out (an agent of another version?).",
    )
    NO_IMPACT = "no_impact", "Deviates, but neither slower steps nor waiting peers."
    SLOWDOWN_PRECEDES_ANOMALY = (
        "slower_before",
        "Deviates, and the steps are slower; they were for a while before it did: that is not why.",
    )
    SLOWDOWN_FOLLOWS_ANOMALY = (
        "slower_later",
        "Deviates, and the steps are slower; they were as fast as ever for a while after it did: that is not why.",
    )
    HIGHER_WORKLOAD = (
        "works_harder",
        (
            "Takes longer for its steps, or makes all steps longer, and does more work a second than its peers "
            "meanwhile: it has more to do."
        ),
    )
    NON_TRAINING_PHASE = (
        "other_work",
        "No step ends and the machines work on: an evaluation, a compilation or a checkpoint? Announce it.",
    )
    STILL_PROGRESSING = (
        "steps_go_on",
        "The machines do hardly any work, and steps end all the same, one by one: the job is slow, it does not stand.",
    )
    MONITORING_LOST = (
        "monitoring_lost",
        "A source fell silent while the peers progress, or its processes speak again: only monitoring was lost.",
    )
    ENDED_WITH_OTHERS = (
        "ended_with_others",
        "Its processes ended with those of all others, by no fault of its own: the job is over, or starts elsewhere.",
    )
    ANNOUNCED_PHASE = "announced_phase", "The job announced a checkpoint, an evaluation or a compilation."
    WARMING_UP = "warming_up", "Not enough steps yet to know what is normal."
    WITHIN_PATIENCE = "within_patience", "Waiting, but not longer than this job is known to wait."
    NOT_CONTINUOUS = "not_continuous", "Deviated for too short a time."
    MAY_BE_LUCK = (
        "may_be_luck",
        "Others are late, too, and it is the slowest no oftener than luck makes one of so few.",
    )
    VICTIM = "victim", "Explained by another component's fault."
    NO_HOOK = "no_hook", "Steps without communication times: attach the hook (hook.attach) to see who waits for whom."
    GROUPS_UNKNOWN = "groups_unknown", "No communication groups announced: nobody knows who waits for whom."
    STAGES_UNKNOWN = (
        "stages_unknown",
        "The job has pipeline stages and nobody said which rank is in which: a long stage looks slow.",
    )
    METRIC_MISSING = (
        "metric_missing",
        "Fewer than three machines have a sample of the metric, or a machine sent frames without any number.",
    )
    NOTHING_RECORDED = "nothing_recorded", "None of the inputs that a detector reads is there."
    SPAN_TOO_SHORT = "span_too_short", "Fewer samples than one window of the detector (or than it learns from first)."
    THRESHOLD_UNREACHABLE = (
        "threshold_unreachable",
        "So few machines that none can reach the model's threshold: no z-score of N is above sqrt(N - 1).",
    )
    AMBIGUOUS = "ambiguous", "Several components fit the evidence equally well."


class ModelRefusal(NamedReason):
    """Reason for which an announced model is refused; the present one stays in use."""

    UNKNOWN_DETECTOR = "unknown_detector", "This program has no detector of that name."
    UNKNOWN_FORMAT = "unknown_format", "The detector reads no such payload."
    NEWER_FORMAT = "newer_format", "Written for a newer program."
    HASH_MISMATCH = "hash_mismatch", "The payload is not what was announced."
    MODEL_UNDECODABLE = "model_undecodable", "The payload cannot be read at all, or holds a field that nobody knows."
    OTHER_METRIC = "other_metric", "It was trained for another metric."
    OUT_OF_RANGE = "out_of_range", "A number with which the detector could not do its work."
    NOT_A_BOUNDARY = "not_a_boundary", "``effective_ns`` is not the begin of a slice."
    SHORT_NOTICE = "short_notice", "``effective_ns`` is less than ten seconds after the announcement's own time."
    FAR_AHEAD = "far_ahead", "``effective_ns`` is more than a day after it."
    TOO_LATE = "too_late", "It came when slices that it is for may have been judged."
    MISPLACED = "misplaced", "It came on a topic of a job's records."

    COLLAPSED_WEIGHTS = "collapsed_weights", "A network whose weights went to zero: it answers the same to everything."
    UNBOUNDED_WEIGHTS = "unbounded_weights", "A network whose weights grew without bound."
    COLLAPSED_FEATURES = "collapsed_features", "A network that maps everything to one point."
    COLLAPSED_SCORES = "collapsed_scores", "A network that scores all normal data the same."
    BLIND_TO_SHUFFLED = "blind_to_shuffled", "A network that takes nonsense for normal."
    FALSE_ALARM_RATE = (
        "false_alarm_rate",
        "A network that does not keep its share of false alarms on data that it was not trained on.",
    )


class IdentityRefusal(NamedReason):
    """Reason for which a peer or its message is refused: its identity is not proved, or it may not send that."""

    IDENTITY_MISSING = "identity_missing", "It names no key where one is needed, or speaks before it has said hello."
    BAD_HELLO = "bad_hello", "Its hello lacks a field, or one of them is not as it must be."
    UNKNOWN_KEY = "unknown_key", "No credential has the key id that it names."
    KEY_REVOKED = "key_revoked", "Its credential was revoked."
    PROOF_WRONG = "proof_wrong", "It does not know the secret of the key that it names."
    REPLAYED = (
        "replayed",
        "What it sends was sent before: a hello to another challenge, or a message of this connection once more.",
    )
    MAC_MISSING = "mac_missing", "A message without its authentication code."
    MAC_WRONG = "mac_wrong", "A message whose authentication code is not that of its bytes under this connection's key."
    OUT_OF_ORDER = "out_of_order", "A message of this connection that others should have come before."
    HELLO_HOST = "hello_host_mismatch", "It says it is another host than the one that its credential belongs to."
    RECORD_HOST = "record_host_mismatch", "A record about another host than the one that its sender is."
    UID_REFUSED = "uid_refused", "The process at the other end of the unix socket belongs to a user who was not named."
    CERTIFICATE_REFUSED = "certificate_refused", "Its certificate names no host, or another than its credential."
    NOT_LOCAL = "not_local", "A credential for every host of the engine's own machine, from another machine."
    ROLE_REFUSED = "role_not_allowed", "Its role does not let it say that."
    PLAYER_REFUSED = "player_not_allowed", "A player's credential, and the engine was not told to take recordings."
    MODEL_REFUSED = (
        "model_not_allowed",
        "A model over an agent's connection: models come over the control socket, or signed.",
    )
    CLOSE_REFUSED = (
        "close_not_allowed",
        "Who is no operator closes an incident: that takes the engine's control socket.",
    )
    UNSIGNED = "unsigned", "A record or a verdict without a signature where one is asked for."
    BAD_SIGNATURE = "bad_signature", "A signature that was not made with the key that it names, or of other bytes."
    ENGINE_UNPROVEN = (
        "engine_unproven",
        "The engine does not prove that it knows the secret, or asks for less than this agent insists on.",
    )


class RegistryRefusal(NamedReason):
    """Reason for which the model registry refuses a request."""

    NOT_FOUND = "not_found", "It has no such version."
    CARD_UNREADABLE = "card_unreadable", "A JSON file is cut short, damaged, newer than the program, or lacks a field."
    HASH_MISMATCH = (
        "hash_mismatch",
        "A model's bytes are not those that its card names, or the card's hash is not that of its version.",
    )
    FOREIGN = "foreign", "A file is not of the detector and version whose folder it lies in."
    TOO_LARGE = "too_large", "Longer than any file of ours."
    UNREACHABLE = "unreachable", "The folder or the object store cannot be read or written."
    MARKED_REFUSED = "marked_refused", "Somebody marked the version as not to be used."
    PROMOTED_MEANWHILE = "promoted_meanwhile", "Another version became the current one since the comparison."
    BUILT_IN = "built_in", "It is part of the program."


class PromotionRefusal(NamedReason):
    """Reason against a model as the current one; ``pipeline.lab.registry.comparison`` has the criteria."""

    F1_LOWER = (
        "f1_lower",
        "Fewer faults found, or more accusations false, than the current model's on the same recordings.",
    )
    MORE_FALSE_ACCUSATIONS = "more_false_accusations", "More healthy machines accused than by the current model."
    CAUSES_WORSE = "causes_worse", "It leads to the wrong cause clearly more often."
    SLOWER = "slower", "It takes clearly longer."
    TOO_FEW_RECORDINGS = "too_few_recordings", "The recordings hold too little to tell."
    NOT_VALIDATED = "not_validated", "It was compared with nothing."


class StateLoss(NamedReason):
    """Reason for which an engine's kept state was not used, or some of it is not kept."""

    UNREADABLE = "state_unreadable", "A snapshot or its journal is damaged."
    OTHER_VERSION = "state_of_other_version", "A program with another form of state wrote it."
    INCOMPLETE = (
        "journal_incomplete",
        "The engine before this one could not keep its journal whole since its last snapshot.",
    )
    TOO_OLD = (
        "state_too_old",
        "The engine was away for longer than a verdict lives: what was known is no basis any more.",
    )
    IN_THE_FUTURE = "state_in_the_future", "The state was written later than the clock says it is now."
    JOURNAL_FULL = "journal_full", "More was taken since the last snapshot than the journal may hold."
    JOURNAL_UNWRITABLE = "journal_unwritable", "The disk refuses the journal."
    JUDGED_AT_TWO_ENDS = (
        "judged_at_two_ends",
        "The engine ended twice in a row while it judged these records: they are dead letters.",
    )


class SpeakerRefusal(NamedReason):
    """Reason for which a host's statement is ignored: only the host on which a rank is placed may report about it."""

    RANK_OF_OTHER_HOST = "rank_of_other_host", "The rank is placed on another host."
    PLACE_OF_OTHER_HOST = (
        "place_of_other_host",
        "A topology tells where a rank runs, and means another host than its own.",
    )
    RANK_HELD = "rank_held", "Two hosts say that a rank runs there: the earlier one keeps it."
    RANK_CONTESTED = (
        "rank_contested",
        "Two hosts said at about the same time that a rank runs there: neither is heard of it.",
    )
    RANK_BEYOND_WORLD = "rank_beyond_world", "Most hosts announce a job that has no such rank."
    GROUP_OF_OTHERS = "group_of_others", "None of the group's members is placed on the host that announces it."
    TOO_MANY_GROUPS = (
        "too_many_groups",
        "A host announces more communication groups than are kept of it: the oldest of them are forgotten.",
    )
    CLOSE_OF_HOST = "close_of_host", "A host closes an incident: that takes the engine's control socket."
    PHASE_OF_NOBODY = "phase_of_nobody", "A phase of the whole job, announced by a host that holds no rank of it."
