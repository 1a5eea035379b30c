"""The promises, as plain functions over the durable state, clients' answers and models' input.

Each yields one line for every breach it finds. They share no code with what they check.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

import msgspec

from holdfast.core.errors import HoldfastError
from holdfast.core.model.session import Session
from holdfast.core.model.turn import RUN_AGAIN, USER_ACTIVITY, Run, Turn
from holdfast.core.projection.project import project
from holdfast.core.transaction.commands import AppendBatch, Appended, ExpireWorker, Renew
from tests.simulation.approval_promises import (
    approvals_are_answered_once,
    tools_run_only_if_allowed,
)
from tests.simulation.batches import words
from tests.simulation.clients import Heard, said_by
from tests.simulation.disk import outcome_of
from tests.simulation.erasure_promises import (
    copies_are_erased,
    erased_is_found_nowhere,
    nothing_erased_is_found,
    nothing_erased_is_indexed,
)
from tests.simulation.model import ModelCall, text_of
from tests.simulation.ownership import late_writes, starts, swallowed
from tests.simulation.plan import TENANTS
from tests.simulation.replica import Answer
from tests.simulation.schedule_promises import (
    due_times_run_once,
    schedules_come_to_rest,
    stops_are_obeyed_once,
)
from tests.simulation.shown import Told, shown, summaries_of
from tests.simulation.stop_promises import stopped_answers_are_superseded
from tests.simulation.world import Story

Breaches = Iterator[str]

EXPLICIT_ENDS = {
    "turn_cancelled", "interrupted_by_turn", "rolled_back", "session_reset", "session_restored",
    "session_deleted", "stopped_by_user", "schedule_timeout", "schedule_deleted", "superseded",
}  # fmt: skip
HOLD_ENDS = {"tool_wait_expired", "approval_expired"}
MADE_UP = (b'"interrupted: this call', b'"Summary of the conversation', b"bytes of this output are")
"""Beginnings of texts that are in no log: placeholders, summaries and shortened outputs."""


def breaches(story: Story) -> list[str]:
    """Return every breach in a story; empty if all promises were kept."""
    found = list(story.blames)
    for promise in PROMISES:
        found.extend(promise(story))
    return found


def one_key_one_live_session(story: Story) -> Breaches:
    """I1: a key has at most one live session; its generations are numbered without a gap."""
    keys: dict[tuple[str, str], list[Session]] = defaultdict(list)
    for session in story.image.sessions.values():
        if session.key is not None:
            keys[session.tenant, session.key].append(session)
    for (tenant, key), sessions in keys.items():
        live = [session.id for session in sessions if session.is_live]
        if len(live) > 1:
            yield f"I1 {tenant}/{key} has {len(live)} live sessions: {live}"
        numbers = sorted(session.generation for session in sessions)
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"I1 {tenant}/{key} has generations {numbers}"
        made = sum(session.previous_session_id is None for session in sessions)
        deleted = sum(session.deleted_at is not None for session in sessions)
        if made > 1 + deleted:
            yield f"I1 {tenant}/{key} was begun {made} times, erased {deleted} times"


def acknowledged_is_durable(story: Story) -> Breaches:
    """I2: acknowledged data is in the store, and every accepted turn has a stated end."""
    for heard in story.heard:
        if isinstance(heard.answer, Answer):
            yield from _answer_is_kept(story, heard)
        elif isinstance(heard.answer, Appended):
            yield from _batch_is_kept(story, heard, heard.answer)
        elif isinstance(heard.answer, Session):
            kept = story.image.sessions.get(heard.answer.id)
            if kept is None:
                yield f"I2 {heard.op.id}: session {heard.answer.id} is not there"
            elif heard.op.kind == "delete" and kept.deleted_at is None:
                yield f"I2 {heard.op.id}: session {kept.id} was not deleted"
    for turn in story.image.turns.values():
        yield from _end_is_stated(story, turn)


def _answer_is_kept(story: Story, heard: Heard) -> Breaches:
    image, answer = story.image, heard.answer
    turn = image.turns.get(answer.turn_id)
    if turn is None:
        yield f"I2 {heard.op.id}: turn {answer.turn_id} was acknowledged and is not there"
        return
    session = image.sessions[turn.session_id]
    if session.deleted_at is not None:
        return
    log = [text_of(item.body) for item in image.log(session)]
    if heard.op.kind in ("turn", "edit", "append", "fork", "child") and heard.part in ("", "fork"):
        said = said_by(heard.op, heard.op.same_as or heard.op.id)
        waits = turn.input is not None and said.encode() in turn.input
        if said not in log and not waits:
            yield f"I2 {heard.op.id}: what was said is in no log ({turn.id})"
    if heard.op.kind == "append":
        visible = [text_of(item.body) for item in image.visible(session)]
        rewound = _is_meddled_with(story, session)
        if said_by(heard.op, heard.op.id) not in visible and not rewound:
            yield f"I2 {heard.op.id}: appended items are not to be seen ({turn.outcome})"
    # A repeat gets nothing of an answer that was erased meanwhile.
    is_erased = any(session_id == session.id for session_id, _ in image.erased)
    has_text = answer.stored is not None and (answer.stored.text or not is_erased)
    if has_text and answer.stored.text not in log:
        yield f"I2 {heard.op.id}: the answer {answer.stored.text!r} is in no log"


def _is_meddled_with(story: Story, session: Session) -> bool:
    """Whether a client has hidden a part of a session."""
    records = story.image.records.get(session.id, [])
    return any(record.kind in ("rewind", "hide", "pop") for record in records)


def _batch_is_kept(story: Story, heard: Heard, answer: Appended) -> Breaches:
    """A batch is in the session that its turn began in, and is visible there until an edit."""
    session = story.image.sessions[answer.session.id]
    if session.deleted_at is not None:
        return
    said = words(heard.op, int(heard.part))
    texts = [text_of(item.body) for item in story.image.visible(session)]
    own = {text_of(item.body) for item in story.image.items.get(session.id, [])}
    rewound = _is_meddled_with(story, session)
    if said not in own:
        yield f"I2 {heard.op.id}: batch {heard.part} is not in {session.id}"
    if texts.count(said) != 1 and not (rewound and said not in texts):
        yield f"I3 {heard.op.id}: batch {heard.part} is to be seen {texts.count(said)} times"
    elsewhere = [
        other.id for other in story.image.sessions.values() if other.id != session.id
        and any(text_of(item.body) == said for item in story.image.items.get(other.id, []))
    ]  # fmt: skip
    if elsewhere:
        yield f"I3 {heard.op.id}: batch {heard.part} of {session.id} is in {elsewhere} too"


def _end_is_stated(story: Story, turn: Turn) -> Breaches:
    """A turn ends by its own work or by an explicit request; a lost one may be sent again."""
    if turn.outcome == "cancelled" and turn.error_code not in EXPLICIT_ENDS:
        yield f"I2 {turn.id} was cancelled by {turn.error_code}"
    is_left = turn.outcome == "interrupted" and turn.error_code not in HOLD_ENDS
    if is_left and turn.source in RUN_AGAIN:
        yield f"I2 {turn.id} ({turn.source}) was not run again: {turn.error_code}"
    if turn.outcome == "interrupted" and turn.error_code == "worker_lost" and not turn.is_retryable:
        yield f"I2 {turn.id} was lost and may not be sent again"
    if turn.error_code == "turn_abandoned":
        lost = sum(run.error_code == "worker_lost" for run in story.image.runs.values()
                   if run.turn_id == turn.id)  # fmt: skip
        if lost + 1 < story.plan.lanes.max_attempts:
            yield f"I2 {turn.id} was given up after losing {lost} workers"


def once_in_once_out(story: Story) -> Breaches:
    """I3: one key, one turn, one visible input, one answer, the same for every caller."""
    image = story.image
    for turn in image.turns.values():
        done = Counter(run.step for run in image.runs.values()
                       if run.turn_id == turn.id and run.outcome == "completed")  # fmt: skip
        for step, count in done.items():
            if count > 1:
                yield f"I3 {turn.id} step {step} was completed {count} times"
    by_request: dict[tuple[str, str, str], set[tuple[str, str]]] = defaultdict(set)
    for heard in story.heard:
        key = heard.op.idempotency_key
        if key is not None and isinstance(heard.answer, Answer):
            text = heard.answer.stored.text if heard.answer.stored else ""
            by_request[heard.op.tenant, key, heard.part].add((heard.answer.turn_id, text))
    for (_, key, part), answers in by_request.items():
        if len({turn_id for turn_id, _ in answers}) > 1:
            yield f"I3 {key} {part} was answered by turns {sorted(answers)}"
        if len({text for _, text in answers if text}) > 1:
            yield f"I3 {key} {part} got different answers {sorted(answers)}"
    yield from _said_once(story)


def _said_once(story: Story) -> Breaches:
    """Input with an idempotency key is visible once, however often it was sent."""
    seen: Counter[str] = Counter()
    logged: Counter[str] = Counter()
    for session in story.image.sessions.values():
        hidden = story.image.hidden(session)
        for item in story.image.items.get(session.id, []):
            text = text_of(item.body)
            logged[text] += 1
            if item.seq not in hidden:
                seen[text] += 1
    for op in story.plan.ops:
        said = said_by(op, op.same_as or op.id)
        allowed = 1 if op.idempotency_key else op.tries
        if seen[said] > allowed and op.kind in ("turn", "edit", "append", "child"):
            yield f"I3 {op.id}: {said!r} is to be seen {seen[said]} times"
    brought = Counter(text_of(item.body) for sent in story.sent for item in sent.items)
    for text, count in seen.items():
        # A client may bring an answer that it has read into another session.
        if text.startswith("answer ") and count > 1 + brought[text]:
            yield f"I3 {text!r} is to be seen {count} times"


def turns_are_serial(story: Story) -> Breaches:
    """I4: turns' blocks do not interleave, runs do not overlap, and each saw all earlier ones."""
    image, set_back = story.image, story.plan.seconds_set_back
    for session in image.sessions.values():
        numbers = [item.turn_number for item in image.visible(session)
                   if item.seq > session.parent_seq]  # fmt: skip
        blocks = [n for place, n in enumerate(numbers) if place == 0 or numbers[place - 1] != n]
        if len(set(blocks)) != len(blocks):
            yield f"I4 {session.id} has interleaved turns {numbers}"
        runs = image.runs_of(session.id)
        for before, after in pairwise(runs):
            if before.ended_at is None or before.ended_at > after.started_at + set_back:
                yield f"I4 {before.id} and {after.id} of {session.id} overlap"
    began = starts(story.journal) if image.erased else {}
    for call in story.model.calls:
        session = image.sessions[call.session_id]
        if session.deleted_at is not None:
            continue
        if not _is_shown_the_log(story, session, call, began.get(call.run_id, 0)):
            yield f"I4 call {call.number} of {call.run_id} was not shown what stood before it"
        run = image.runs.get(call.run_id)
        if run is not None and run.outcome == "completed":
            later = [item for item in image.items.get(session.id, [])
                     if call.head_seq < item.seq <= (run.last_seq or 0)]  # fmt: skip
            turn = image.turns[call.turn_id]
            if any(item.turn_number != turn.number for item in later):
                yield f"I4 others wrote to {session.id} while {run.id} ran"


def _is_shown_the_log(story: Story, session: Session, call: ModelCall, began: int) -> bool:
    """Whether a call was shown the log, without what had been erased before its run began."""
    gone = story.image.gone
    first = max(n for n, (place, _) in enumerate(gone) if place < began or not n)
    return any(
        project(shown(story.image, session, call.record_no, call.head_seq, one))
        == list(call.context)
        for _, one in gone[first:]
    )


def only_the_owner_writes(story: Story) -> Breaches:
    """I5: no run changed anything after its session belonged to another run, or was reset."""
    yield from late_writes(story.journal)
    live = {session.id for session in story.image.sessions.values() if session.is_live}
    for session_id, _, value, _ in story.image.provider_state:
        run = story.image.runs.get(value.decode())
        if session_id not in live:
            yield f"I5 {session_id} is retired and still has provider state"
        elif run is None or run.session_id != session_id:
            yield f"I5 the provider state of {session_id} is of {value.decode()}"
        elif run.outcome != "completed" and not _has_tool_steps(story, run):
            yield f"I5 the provider state of {session_id} was left by {value.decode()}"


def _has_tool_steps(story: Story, run: Run) -> bool:
    """Whether a run has committed calls of the gateway's tools, which it may do with a state."""
    log = story.image.items.get(run.session_id, [])
    return any(item.call_id is not None and item.call_id.endswith(f"_{run.id}") for item in log)


def everything_ends(story: Story) -> Breaches:
    """I6: no turn, run, lane or worker is left open once the world has settled."""
    for turn in story.image.turns.values():
        if turn.outcome is None:
            yield f"I6 {turn.id} of {turn.session_id} never ended"
    for run in story.image.runs.values():
        if run.outcome is None:
            yield f"I6 {run.id} of {run.turn_id} never ended"
    for session in story.image.sessions.values():
        if session.active_turn_id is not None:
            yield f"I6 the lane of {session.id} is still held by {session.active_turn_id}"
    if story.image.workers:
        yield f"I6 workers are left: {story.image.workers}"


def the_living_keep_their_leases(story: Story) -> Breaches:
    """I5: nobody is declared dead who lives and renewed its lease less than a lease ago."""
    renewed: dict[str, tuple[float, str]] = {}
    for written in story.journal:
        command, outcome = written.command, outcome_of(written)
        if isinstance(command, Renew) and not isinstance(outcome, HoldfastError):
            renewed[command.worker] = (written.at, written.replica)
        if not isinstance(command, ExpireWorker) or command.drop or outcome is not True:
            continue
        last, process = renewed.get(command.worker, (-math.inf, ""))
        is_recent = written.at - last < story.plan.lanes.lease_seconds
        if is_recent and story.deaths.get(process, math.inf) > written.at:
            yield f"I5 {written.replica} declared {process} dead, which lives"


def history_only_grows(story: Story) -> Breaches:
    """I8: no gap, no rewriting, no deletion except by erasure; every item is reachable."""
    image = story.image
    for what, session_id, at in image.touched:
        if image.sessions[session_id].deleted_at is None:
            yield f"I8 {what}: {session_id} {at}"
    for session in image.sessions.values():
        own = [item.seq for item in image.items.get(session.id, [])]
        if session.deleted_at is not None:
            if own:
                yield f"I8 {session.id} was erased and still has items"
            continue
        if own != list(range(session.parent_seq + 1, session.head_seq + 1)):
            yield f"I8 {session.id} has items {own}, head {session.head_seq}"
        shown = len(image.visible(session))
        if shown != session.item_count:
            yield f"I8 {session.id} counts {session.item_count} items, {shown} are to be seen"
        yield from _blocks_are_whole(story, session)


def _blocks_are_whole(story: Story, session: Session) -> Breaches:
    """A completed turn is never rolled back: its finished items stay visible until an edit."""
    log = {item.seq: item for item in story.image.log(session)}
    hiding = story.image.records.get(session.id, [])
    for turn in story.image.turns_of(session):
        if turn.outcome != "completed" or turn.first_seq is None or turn.last_seq is None:
            continue
        for seq in range(turn.first_seq, turn.last_seq + 1):
            item = log[seq]
            if item.turn_number != turn.number:
                yield f"I8 item {seq} of {session.id} stands in the block of {turn.id}"
            for record in hiding:
                is_over = record.from_seq <= seq <= record.to_seq
                if is_over and record.kind in ("rollback", "retry") and not item.is_partial:
                    yield f"I8 {record.kind} hides item {seq} of the completed {turn.id}"


def summaries_are_records(story: Story) -> Breaches:
    """I8, I12: a summary covers only what its run saw, and is shorter; undone, it has no effect."""
    image = story.image
    yield from swallowed(story.journal)
    for session in image.sessions.values():
        for one in summaries_of(image, session):
            yield from _summary_is_sound(story, session, one)
    for heard in story.heard:
        if heard.op.kind != "undo" or not isinstance(heard.answer, Session):
            continue
        session = image.sessions[heard.answer.id]
        own = image.records.get(session.id, [])
        undone = {record.undoes for record in own}
        for record in own:
            is_meant = heard.part.encode() in (record.body or b"")
            if is_meant and record.no not in undone:
                yield f"I2 {heard.op.id}: {heard.part} of {session.id} is not undone"


def _summary_is_sound(story: Story, session: Session, one: Told) -> Breaches:
    record, name = one.record, f"{one.body['id']} of {session.id}"
    if record.from_seq != 1 or not 1 <= record.to_seq <= session.head_seq:
        yield f"I8 {name} speaks of items {record.from_seq} to {record.to_seq}"
    if one.body["tokens_after"] >= one.body["tokens_before"]:
        yield f"I12 {name} makes nothing shorter"
    turn = story.image.turns.get(record.turn_id or "")
    if turn is None or turn.session_id != session.id:
        yield f"I5 {name} was made in no turn of it"


def nobody_elses(story: Story) -> Breaches:
    """I10: no model saw another tenant's text, and another tenant's ids look nonexistent."""
    image = story.image
    for call in story.model.calls:
        session = image.sessions[call.session_id]
        if session.deleted_at is not None:
            continue
        lineage = {item.body for item in image.log(session)}
        call_ids = {item.call_id for item in image.log(session) if "gateway_" in item.kind}
        outputs = {
            msgspec.json.decode(item.body)["output"]
            for item in image.log(session)
            if item.kind == "function_call_output"
        }
        for body in call.context:
            text = text_of(body)
            strangers = [name for name in TENANTS if name != session.tenant]
            if any(f"{name}|" in body.decode() for name in strangers):
                yield f"I10 {call.run_id} of {session.tenant} was shown {text!r}"
            if _is_tool_step(body, call_ids) or _late_output(text) in outputs:
                continue
            if not any(made in body for made in MADE_UP) and body not in lineage:
                yield f"I10 {call.run_id} was shown what {session.id} does not hold: {text!r}"
    for heard in story.heard:
        if heard.part.startswith("pry") and heard.error not in (
            "lost", "session_not_found", "turn_not_found", "store_unavailable",
        ):  # fmt: skip
            yield f"I10 {heard.op.id} {heard.part} was answered {heard.error or heard.answer}"


def _late_output(text: str) -> str | None:
    """Return the output that a text tells, if it tells one that came late."""
    head, _, output = text.partition("\n")
    return output if head.endswith("which came late]") else None


def _is_tool_step(body: bytes, call_ids: set[str | None]) -> bool:
    """Whether an item is a model's form of a call of the gateway's tools, or of its output."""
    value = msgspec.json.decode(body)
    is_call = value.get("type") in ("function_call", "function_call_output")
    return is_call and value["call_id"] in call_ids


def tools_run_once(story: Story) -> Breaches:
    """I2, I3: a call is committed before it runs; one that may not be repeated runs once."""
    runs = Counter(call.call_id for call in story.tools.calls if call.name == "write")
    for call_id, count in runs.items():
        if count > 1:
            yield f"I3 {call_id} ran {count} times"
    for call in story.tools.calls:
        session = story.image.sessions[call.session_id]
        log = story.image.items.get(session.id, [])
        if session.deleted_at is None and call.call_id not in {item.call_id for item in log}:
            yield f"I2 {call.call_id} ran and is not in {session.id}"


def lifecycle_by_policy(story: Story) -> Breaches:
    """I11: a session is retired by a request or a stated policy, and never during a turn."""
    mode = story.plan.reset.mode
    allowed = {"session_reset", "session_restored"} | (
        {"daily_rollover"} if mode == "daily" else set()
    )
    for session in story.image.sessions.values():
        for event in story.image.events.get(session.id, []):
            if event.kind == "session.retired":
                reason = msgspec.json.decode(event.body)["reason"]
                if reason not in allowed:
                    yield f"I11 {session.id} was retired by {reason}"
            if event.kind == "session.rolled_over" and mode != "idle":
                yield f"I11 {session.id} rolled over without a policy"
        if session.deleted_at is not None:
            continue
        times = [turn.accepted_at for turn in story.image.turns_of(session)
                 if turn.source in USER_ACTIVITY and session.is_visible]  # fmt: skip
        last = session.last_user_activity_at
        if times and (last is None or last < max(times) - story.plan.seconds_set_back):
            yield f"I11 {session.id} forgot its last user activity"
        if not times and last is not None and session.is_visible:
            yield f"I11 {session.id} counts an activity that was nobody's"


def numbers_are_true(story: Story) -> Breaches:
    """I12: counts and sums can be recounted, and every sequence is without a gap."""
    image = story.image
    for session in image.sessions.values():
        turns = image.turns_of(session)
        if [turn.number for turn in turns] != list(range(1, session.turn_count + 1)):
            yield f"I12 {session.id} counts {session.turn_count} turns"
        if session.deleted_at is not None:
            continue
        for name, rows, last in (
            ("records", image.records.get(session.id, []), session.record_no),
            ("events", image.events.get(session.id, []), session.event_no),
        ):
            if [row.no for row in rows] != list(range(1, last + 1)):
                yield f"I12 {session.id} has {name} {[row.no for row in rows]}, last {last}"
        runs = image.runs_of(session.id)
        made = [one.body for one in summaries_of(image, session)]
        for field in ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens"):
            total = sum(getattr(run, field) or 0 for run in runs)
            total += sum(body.get("usage", {}).get(field, 0) for body in made)
            if getattr(session, field) != total:
                yield f"I12 {session.id} counts {getattr(session, field)} {field}, not {total}"
        if len({run.epoch for run in runs}) != len(runs):
            yield f"I12 two runs of {session.id} share an epoch"


def no_inner_errors(story: Story) -> Breaches:
    """No answer was an internal error of the store or the engine."""
    for written in story.journal:
        outcome, command = outcome_of(written), written.command
        if isinstance(command, AppendBatch) and not command.again and not command.ordinal:
            continue  # begun by its own repeat: it is looked up and sent again
        if isinstance(outcome, BaseException) and not isinstance(outcome, HoldfastError):
            yield f"inner error: {type(written.command).__name__} got {outcome!r}"
        elif isinstance(outcome, HoldfastError) and outcome.code in (
            "store_error",
            "internal_error",
        ):
            yield f"inner error: {type(written.command).__name__} got {outcome.message}"


PROMISES: tuple[Callable[[Story], Breaches], ...] = (
    one_key_one_live_session,
    acknowledged_is_durable,
    once_in_once_out,
    turns_are_serial,
    only_the_owner_writes,
    everything_ends,
    the_living_keep_their_leases,
    history_only_grows,
    summaries_are_records,
    nobody_elses,
    tools_run_once,
    lifecycle_by_policy,
    numbers_are_true,
    no_inner_errors,
    tools_run_only_if_allowed,
    approvals_are_answered_once,
    due_times_run_once,
    schedules_come_to_rest,
    stops_are_obeyed_once,
    stopped_answers_are_superseded,
    erased_is_found_nowhere,
    copies_are_erased,
    nothing_erased_is_indexed,
    nothing_erased_is_found,
)
