"""Snapshots: all that the head knows of its job at one moment. Nothing here changes the head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol.job_snapshot import AgentSnapshot, AgentState, JobSnapshot
from ..protocol.losses import Loss
from ..protocol.messages import Report
from ..protocol.model import Assignment, Origin, Phase, Query, Vitals
from ..protocol.values import replace
from ..protocol.wording import who
from .roster import Peer
from .round import IN_ROUND

if TYPE_CHECKING:
    from .head_state import HeadState
    from .stages.stage import JobStage

OF_PHASE = {
    Phase.PREPARING: AgentState.PREPARING,
    Phase.IDLE: AgentState.READY,
    Phase.RUNNING: AgentState.RUNNING,
    Phase.STOPPING: AgentState.STOPPING,
    Phase.STUCK: AgentState.CORDONED,
    Phase.DONE: AgentState.DONE,
    Phase.ENDED: AgentState.LEFT,
}


def snapshot_of(stage: JobStage, now: float) -> JobSnapshot:
    state, straggler = stage.state, stage.straggler
    current = state.current if stage.kind in IN_ROUND else None
    groups = current.groups if current is not None else []
    wanted = state.viewers.query(now)
    reports = (p.last_report for p in current.participants) if current is not None else ()
    ended, notices, allocation = state.end.verdict, state.end.notices, state.end.allocation
    host = "" if straggler is None else straggler.host
    return JobSnapshot(
        stage=stage.kind,
        entered=now - stage.since,
        head=state.roster[state.me].host,
        term=state.orders.term,
        round=state.round,
        begun=None if current is None else now - current.begun,
        resumed="" if current is None else current.resumed,
        fewest=state.rendezvous.fewest,
        most=state.job.most or state.job.nodes,
        restarts=state.budget.total,
        max_restarts=state.job.max_restarts,
        spent=state.budget.used,
        agents=tuple(_agent(state, peer, groups, now) for peer in state.roster),
        pace=None if current is None else current.pace,
        straggler="" if straggler is None else who(host, straggler.rank),
        straggler_host=host,
        end=allocation.left(now),
        is_preempted=allocation.announced is Origin.PREEMPTION,
        notice="" if current is None else notices.account,
        is_notice_given=current is not None and notices.offer is not None and notices.offer.given,
        verdict="" if ended is None else ended.reason,
        code=None if ended is None else ended.code,
        is_flushing=state.end.is_flushing,
        is_complete=all(_has_vitals(r, wanted) for r in reports),
    )


def _has_vitals(report: Report, wanted: Query | None) -> bool:
    """Return whether the agent has answered this query for vitals, or need not answer."""
    if wanted is None or report.phase is not Phase.RUNNING:
        return True
    return report.answer(Vitals, wanted) is not None


def _agent(head: HeadState, peer: Peer, groups: list[int], now: float) -> AgentSnapshot:
    report, part = peer.report, peer.assignment if groups else None
    if report is None or report.round != head.round:
        part = None
    state, why = _state(peer, groups)
    heard = peer.presence.contact.heard
    known = AgentSnapshot(
        index=peer.place.index,
        node=peer.place.node,
        host=peer.host,
        state=state,
        why=why,
        heard=None if heard is None or peer.place.index == head.me else max(0.0, now - heard),
        first_rank=0 if part is None else part.first_rank,
        ranks=0 if part is None else part.nproc,
    )
    if report is None or part is None:
        return known
    return _with_workers(known, report, part)


def _with_workers(known: AgentSnapshot, report: Report, part: Assignment) -> AgentSnapshot:
    progress, vitals = report.progress, report.answer(Vitals)
    return replace(
        known,
        steps=() if progress is None else progress.steps,
        still=0.0 if progress is None else progress.still,
        hang=0.0 if progress is None else progress.limit,
        doing=report.spent.doing.name.lower() if report.spent.times else "",
        workers=() if vitals is None else vitals.ranks,
        gpus=() if vitals is None else vitals.gpus,
        gpus_of=tuple(share.gpus for share in part.shares.of),
    )


def _state(peer: Peer, groups: list[int]) -> tuple[AgentState, str]:
    """Return the state of an agent, and the reason if it is lost or its node is cordoned."""
    # After the end of the job, agents that know of it are silent.
    has_left = peer.has_ended and peer.presence.loss is not Loss.LEFT
    if peer.is_lost and not has_left:
        return AgentState.LOST, peer.why_lost
    if peer.report is None:
        return AgentState.ABSENT, ""
    if why := peer.why_cordoned:
        return AgentState.CORDONED, why
    if groups and peer.place.node not in groups:
        return AgentState.SPARE, ""
    return OF_PHASE[peer.report.phase], ""
