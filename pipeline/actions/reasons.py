"""Named reasons of what happens to an action; each is log field, metric label and test expectation."""

from __future__ import annotations

from tocsin.schemas.reasons import NamedReason


class ActionReason(NamedReason):
    """Reason of an action's state, or for which a message about an action is left out."""

    # it may be carried out
    ALLOWED = "allowed", "No guard is against it."
    APPROVED_BY_PERSON = "approved_by_person", "A person approved it, and no guard is against it."
    # an executor has it
    CLAIMED = "claimed", "An executor holds it."
    TAKEN_OVER = "taken_over", "The lease of the former executor is over; another one holds it."
    LEASE_OVER = "lease_over", "The lease of its executor is over, and nothing was begun."
    STARTED = "started", "Its executor said that it begins."
    DONE = "done", "Its executor said that it is done."
    FAILED = "failed", "Its executor could not carry it out."
    REFUSED_BY_EXECUTOR = "refused_by_executor", "Its executor may not or will not do that."
    TARGET_CHANGED = "target_changed", "Its executor found another incarnation than that of the evidence."
    BLOCKED_BY_TARGET = "blocked_by_target", "Something at the target holds it up, e.g. a disruption budget."
    # it is only shown
    DRY_RUN = "dry_run", "Nothing is executed during a dry run; without it this action would be."
    # a person has to approve it
    POLICY_ASKS = "policy_asks", "The policy asks a person to approve this."
    KIND_ASKS = "kind_asks", "Actions of this kind are approved by a person."
    JOB_RUNS = "job_runs", "A job works on a machine that is to be checked under load: a person decides."
    CLASS_UNPROVEN = "class_unproven", "Two actions of this class were never proved right: a person decides on more."
    LEAF_ASKS = "leaf_asks", "All machines behind one switch are concerned: a person decides."
    NO_APPROVER = "no_approver", "Nobody approved it before its approval deadline."
    # a guard holds it
    NOT_HARD_ENOUGH = "one_witness", "Too few saw the fault for a machine to be taken away."
    ENGINE_SILENT = "engine_silent", "The engine's heartbeat is too old: what it said may not hold any more."
    PLACES_CHANGED = (
        "places_changed",
        "The machine's ranks were moved a few minutes ago: what it shows may be the move.",
    )
    MODEL_CHANGED = "model_changed", "The job's detectors were given another model a few minutes ago."
    VERDICT_OPEN = "verdict_open", "Its verdict is not confirmed yet: it may still ask for something harder."
    EVIDENCE_GROWS = (
        "evidence_grows",
        "Its verdict asks for something harder as soon as one more host tells of the fault.",
    )
    UNDER_MAINTENANCE = "under_maintenance", "Work on its machines or its job is planned for now."
    VETOED = "vetoed", "A person gave the machine back or denied this: other evidence is needed, or time."
    NO_EXECUTOR = "no_executor", "No executor that is alive carries out this kind."
    NO_SPARE = "no_spare", "No machine can take the place, and the job cannot go on with fewer."
    BREAKER_OPEN = "breaker_open", "Too many machines at once show this class: it is more likely a false alarm."
    BUDGET_JOB = "budget_job", "The budget of the job is spent."
    BUDGET_LEAF = "budget_leaf", "The budget of the leaf switch is spent."
    BUDGET_MINIPOD = "budget_minipod", "The budget of the minipod is spent."
    BUDGET_FLEET = "budget_fleet", "The budget of the fleet is spent."
    BUDGET_CONCURRENT = "budget_concurrent", "As many machines are out at once as may be."
    BUDGET_OF_OTHERS = "budget_of_others", "The last of the budget is left to other classes of evidence."
    HOST_BUSY = "host_busy", "Another action on the machine is not finished."
    JOB_BUSY = "job_busy", "Another action on the job is not finished."
    ALREADY_OUT = "already_out", "The machine is out of the scheduler already."
    CORDONED_BY_OTHER = "cordoned_by_other", "Somebody else keeps new work off the machine."
    COVERED_BY_LEAF = "covered_by_leaf", "An action on all machines behind the same switch is open."
    TOO_MANY = "too_many", "More actions are open than are kept."
    HELD_FOR_LONG = "held_for_long", "What holds it up did not go away."
    # it is over
    DEADLINE = "deadline", "Its deadline passed before anything was begun."
    VERDICT_STALE = "verdict_stale", "The verdict was past its expiry when it was read."
    VERDICT_CLOSED = "verdict_closed", "The verdict was taken back or resolved before anything was begun."
    VERDICT_CHANGED = "verdict_changed", "The verdict asks for something else now."
    REBOOTED = "rebooted", "The machine booted since the evidence, or is another one of that name."
    ATTEMPT_OVER = "attempt_over", "The job is in another attempt than that of the evidence."
    HOST_NOT_IN_ATTEMPT = "host_not_in_attempt", "The job's present attempt does not use the machine."
    NOT_TO_CHECK = "not_to_check", "The machine is back, in use, or kept out by somebody else: it is not checked."
    DETECTOR_WRONG = "detector_wrong", "Its detector was proved wrong twice on this attempt of the job."
    DENIED = "denied", "A person decided against it."
    CANCELLED_BY_PERSON = "cancelled_by_person", "A person took it back."
    # what was taken away comes back
    RETURN_CHECK = "return_check", "The machine is out: a check under load says whether it may come back."
    CHECK_FAILED = "check_failed", "The machine failed a check under load, and stays out."
    CHECK_UNANSWERED = "check_unanswered", "A check under load of the machine could not be made; it stays out."
    CHECK_TOO_NARROW = (
        "check_too_narrow",
        "The machine passed a check that did not load each of its GPUs, which the action is about; it stays out.",
    )
    CHECK_PASSED = "check_passed", "The machine passed a check under load."
    QUIET_STEPS = "quiet_steps", "The machine made many steps without a sign of the fault."
    FEEDBACK_FALSE = "feedback_false", "A person said that the verdict was wrong."
    EFFECT_AFTER_END = "effect_after_end", "It was carried out although it had been taken back."
    HELD_BY_OTHER_ACTION = "held_by_other_action", "Another action keeps its machines out; nothing is changed."
    OTHERS_LET_GO = "others_let_go", "Its machines were to come back, and nothing else keeps them out any more."
    RETURNED_BY_PERSON = "returned_by_person", "A person gave its machine back."
    UNDONE = "undone", "Its executor took back what it had changed."
    UNDO_FAILED = "undo_failed", "Its executor could not take back what it had changed."

    # a message about an action is left out
    ACTION_UNKNOWN = "action_unknown", "No such action is known."
    ACK_REPEATED = "ack_repeated", "This executor said this, or something later, already."
    ACK_OF_OTHER = "ack_of_other", "The executor does not hold the action, or holds it no more."
    ACK_OUT_OF_PLACE = "ack_out_of_place", "The action's state does not allow what the ack says."
    CLAIM_LOST = "claim_lost", "Another executor holds the action."
    CLAIM_OVER = "claim_over", "The lease that was asked for is over already."
    KIND_NOT_ANNOUNCED = (
        "kind_not_announced",
        "The newest announcement of the executor that claims the action does not hold its kind or machines.",
    )
    CLAIM_HELD = "claim_held", "A guard is against the action now."
    EPOCH_AHEAD = "epoch_ahead", "The message names an epoch that this controller has not begun."
    APPROVAL_LATE = "approval_late", "The approval came after its deadline."
    COMMAND_OUT_OF_PLACE = "command_out_of_place", "The action's state does not allow the command."
    COMMAND_OLD = "command_old", "The command was said long before it came: it may be an old one played again."
    FACT_OLD = "fact_old", "Something later is known already."
