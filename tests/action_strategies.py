"""Values that hypothesis draws: actions, acks and what else the controller of actions is told."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests import strategies
from tocsin.schemas.action_events import (
    Ack,
    AckKind,
    ActionEvent,
    Approval,
    AttemptChange,
    AttemptChangeKind,
    Cancel,
    CheckResult,
    CordonOwner,
    CordonSeen,
    Denial,
    EngineHeartbeat,
    EngineWay,
    ExecutorHeard,
    HumanChange,
    HumanChangeKind,
    JobFacts,
    MachineFacts,
    Pod,
    QuietSteps,
)
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action, ActionTarget, Machine, Parameter, action_id_of
from tocsin.schemas.operator_notes import Feedback, Maintenance
from tocsin.schemas.verdicts import ActionKind

_names, _texts, _times, _jobs = strategies.names, strategies.texts, strategies.times, strategies.jobs
_counts = st.integers(0, 2**40)
_kinds = st.sampled_from([kind for kind in ActionKind if kind is not ActionKind.NONE])
_machines = st.builds(Machine, _names, _texts, _texts, _texts, _texts)
_targets = st.builds(
    ActionTarget,
    job=_jobs,
    component=st.none() | strategies.components,
    machines=st.lists(_machines, max_size=3, unique_by=lambda one: one.host).map(lambda found: tuple(sorted(found))),
    slurm_job_id=_texts,
    slurm_restart_count=st.none() | st.integers(0, 9),
)
_drafts = st.builds(
    Action,
    action_id=st.just(""),
    verdict_id=_names,
    verdict_update=_counts,
    kind=_kinds,
    target=_targets,
    cause=_names,
    rule=_names,
    budget_class=_names,
    issued_ns=st.just(strategies.BASE_NS),
    deadline_ns=_times.map(lambda ns: max(ns, strategies.BASE_NS)),
    state=st.sampled_from(ActionState),
    reason=_names,
    changed_ns=_times,
    revision=_counts,
    epoch=_counts,
    approval_deadline_ns=_times,
    actor=_texts,
    holder=_texts,
    lease_ns=_times,
    parameters=st.lists(st.builds(Parameter, _names, _names), max_size=2).map(tuple),
)
actions: SearchStrategy[Action] = _drafts.map(
    lambda one: dataclasses.replace(one, action_id=action_id_of(one.verdict_id, one.kind, one.target))
)

acks: SearchStrategy[Ack] = st.builds(
    Ack,
    action_id=_names,
    job=_jobs,
    kind=st.sampled_from(AckKind),
    executor=_names,
    epoch=_counts,
    seq=_counts,
    ts_ns=_times,
    lease_ns=_times,
    reason=_texts,
    detail=_texts,
    effects=st.lists(_names, max_size=3).map(tuple),
)

_commands = {"cluster": _names, "action_id": _names, "actor": _names, "ts_ns": _times, "note": _texts}
_hosts = {"cluster": _names, "host": _names, "ts_ns": _times}
events: SearchStrategy[ActionEvent] = st.one_of(
    st.builds(Approval, **_commands),
    st.builds(Denial, **_commands),
    st.builds(Cancel, **_commands),
    st.builds(HumanChange, **_hosts, kind=st.sampled_from(HumanChangeKind), actor=_names),
    st.builds(MachineFacts, **_hosts, boot_id=_texts, driver=_texts, firmware=_texts, leaf=_texts),
    st.builds(CordonSeen, **_hosts, owner=st.sampled_from(CordonOwner)),
    st.builds(
        JobFacts,
        job=_jobs,
        ts_ns=_times,
        hosts=st.lists(_names, max_size=3).map(tuple),
        pods=st.lists(st.builds(Pod, _names, _names), max_size=2).map(tuple),
        spare_count=st.none() | st.integers(0, 9),
        may_shrink=st.none() | st.booleans(),
        changes=st.lists(st.builds(AttemptChange, st.sampled_from(AttemptChangeKind), _times, _texts), max_size=2).map(
            tuple
        ),
    ),
    st.builds(ExecutorHeard, cluster=_names, executor=_names, kinds=st.lists(_kinds).map(tuple), ts_ns=_times),
    st.builds(
        CheckResult,
        **_hosts,
        boot_id=_texts,
        check=_names,
        is_passed=st.booleans(),
        is_under_load=st.booleans(),
        gpu_count=_counts,
        known_gpu_count=_counts,
        verdict_id=_texts,
    ),
    st.builds(QuietSteps, job=_jobs, host=_names, step_count=_counts, ts_ns=_times),
    st.builds(
        EngineHeartbeat,
        cluster=_names,
        way=st.sampled_from(EngineWay),
        ts_ns=_times,
        checkpoint_seconds=st.floats(0.0, 100.0),
    ),
    st.builds(
        Feedback, cluster=_names, verdict_id=_names, is_true=st.booleans(), note=_texts, actor=_names, ts_ns=_times
    ),
    st.builds(
        Maintenance,
        maintenance_id=_names,
        cluster=_names,
        target=strategies.components,
        begin_ns=_times,
        end_ns=_times,
        reason=_texts,
        actor=_names,
        ts_ns=_times,
    ),
)
