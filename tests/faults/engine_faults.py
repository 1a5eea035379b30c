"""Faults in the engine: runs, streams, wake-ups, input matching, stops."""

from tests.faults.fault import Fault

ENGINE = "src/holdfast/engine"
BACKGROUND = "tests/acceptance/test_background.py"
LONG_STREAMS = "tests/integration/test_long_streams.py"

RUNS = (
    Fault(
        "a call that is made again sends what was erased meanwhile",
        f"{ENGINE}/model_call/caller.py",
        "if not await run.is_context_outdated():",
        "if True:",
        ("tests/integration/test_hidden_meanwhile.py",),
    ),
    Fault(
        "an end whose outcome is unknown is sent again as if it were new",
        f"{ENGINE}/sessions/submission.py",
        "partial(store.submit, replace(command, again=True))",
        "partial(store.submit, command)",
        (
            "tests/unit/engine/sessions/test_submission.py",
            "tests/integration/test_failure_modes_history.py",
        ),
    ),
    Fault(
        "the state of a provider is saved with an answer that is not whole",
        f"{ENGINE}/turns/executor.py",
        "provider_state=answer.state if is_completed else None,",
        "provider_state=answer.state,",
        ("tests/integration/test_unsound_answers.py",),
    ),
    Fault(
        "calls of an answer that is not whole are waited for",
        f"{ENGINE}/turns/executor.py",
        "if item.kind in OUTPUT_OF and is_completed:",
        "if item.kind in OUTPUT_OF:",
        ("tests/integration/test_unsound_answers.py",),
    ),
    Fault(
        "a repeat of input that joined a turn does not wait for its answer",
        f"{ENGINE}/turns/turn_service.py",
        "is_settled = repeated.is_settled and turn.merged_into is None",
        "is_settled = repeated.is_settled",
        ("tests/tools/test_steered_responses.py",),
    ),
    Fault(
        "items that are added without a model call join a running turn",
        f"{ENGINE}/turns/tool_progress.py",
        "if request is None or waiting.rewind_after is not None:\n        return False",
        "if request is None:\n        return True",
        ("tests/tools/test_steering.py",),
    ),
    Fault(
        "a stream of input that joined a turn does not resume it",
        f"{ENGINE}/streaming/stream_reader.py",
        "status = (view.joined or view).turn_status",
        "status = view.turn_status",
        ("tests/tools/test_steered_responses.py",),
    ),
    Fault(
        "an ended stream is replayed from memory whatever the store has now",
        f"{ENGINE}/streaming/live_response.py",
        "del self.running[live.id]",
        "pass",
        ("tests/acceptance/test_two_gateways.py",),
    ),
    Fault(
        "a run that lost its lane goes on asking",
        f"{ENGINE}/turns/turn_service.py",
        "self._gateway.begin(admission, task.cancel)",
        "self._gateway.begin(admission, lambda: None)",
        ("tests/unit/http/test_streams.py", "tests/unit/http/test_background.py"),
    ),
    Fault(
        "an error that the client library made up counts as the server's answer",
        "src/holdfast/tools/mcp/connection.py",
        "            return exchange.is_answer(error.code)\n",
        "            return True\n",
        ("tests/tools/test_mcp_failures.py",),
    ),
    Fault(
        "a call that was never sent may have taken effect",
        "src/holdfast/tools/mcp/http_exchange.py",
        "            if exchange.status is None:\n",
        "            if False:\n",
        ("tests/tools/test_mcp_failures.py",),
    ),
    Fault(
        "an error of a proxy is taken for the answer to a call",
        "src/holdfast/tools/mcp/http_exchange.py",
        'value.get("id") == request.get("id")',
        "True",
        ("tests/tools/test_mcp_failures.py",),
    ),
    Fault(
        "a turn that a stop cuts off loses an attempt",
        f"{ENGINE}/turns/turn_service.py",
        "        self._gateway.hand_back()\n",
        "",
        ("tests/integration/test_stopping.py",),
    ),
    Fault(
        "a call that an interrupted run began is run again",
        f"{ENGINE}/turns/tool_loop.py",
        "call.item_id in tried",
        "False",
        ("tests/tools/test_interrupted_calls.py",),
    ),
    Fault(
        "a turn that is resumed counts its calls anew",
        f"{ENGINE}/turns/tool_loop.py",
        "if is_continued or _has_made_calls(run, own):",
        "if is_continued:",
        ("tests/tools/test_interrupted_calls.py",),
    ),
    Fault(
        "a conversation that an interrupted run may have changed is gone on from",
        f"{ENGINE}/model_call/caller.py",
        "if use.is_mutable and states and not has_run_before:",
        "if False:",
        ("tests/integration/test_unsound_answers.py",),
    ),
    Fault(
        "heals of a lost attempt are forgotten",
        f"{ENGINE}/model_call/caller.py",
        "        if run.turn.attempts > 1:\n",
        "        if run.turn.attempts > 1000:\n",
        ("tests/acceptance/test_heals_across_restarts.py",),
    ),
    Fault(
        "a heal is not recorded",
        f"{ENGINE}/model_call/caller.py",
        "                await self._record(run, treatment, attempt)\n",
        "",
        ("tests/integration/test_heals.py",),
    ),
    Fault(
        "a conversation that a broken turn may have touched is gone on from",
        f"{ENGINE}/model_call/attempt.py",
        "if use.is_mutable and (has_run_before or not _is_untouched(attempt, state)):",
        "if False:",
        ("tests/integration/test_unsound_answers.py",),
    ),
    Fault(
        "a conversation that a hidden turn may have changed is gone on from",
        f"{ENGINE}/model_call/attempt.py",
        "return is_next and all(",
        "return all(",
        ("tests/integration/test_unsound_answers.py",),
    ),
    Fault(
        "a cached projection is used although other items are quarantined",
        f"{ENGINE}/model_call/growing_projection.py",
        "        or cached.key != quarantined\n",
        "",
        ("tests/unit/engine/model_call/test_growing_projection.py",),
    ),
    Fault(
        "a cached projection is used although an output came for a call in it",
        f"{ENGINE}/model_call/growing_projection.py",
        "            if item.call_id in known_ids:\n                return None\n",
        "",
        ("tests/unit/engine/model_call/test_growing_projection.py",),
    ),
    Fault(
        "a rewound context keeps the projection of what was cut out of it",
        "src/holdfast/core/projection/growing_list.py",
        "self[last:], self._forms_upto(first))",
        "self[last:], self.forms)",
        ("tests/unit/engine/model_call/test_growing_projection.py",),
    ),
    Fault(
        "a history that went on otherwise keeps what was serialized of the other one",
        "src/holdfast/core/projection/growing_list.py",
        "        if ahead != new[: len(ahead)]:\n",
        "        if False:\n",
        ("tests/unit/core/projection/test_growing_list.py",),
    ),
)

STREAMS = (
    Fault(
        "a reader elsewhere gets the journal of an earlier attempt",
        f"{ENGINE}/streaming/stream_reader.py",
        "if is_open and not facts.request.is_background:",
        "if False:",
        ("tests/unit/http/test_stream_attempts.py",),
    ),
    Fault(
        "a stream that showed a part of one answer ends with another one",
        f"{ENGINE}/turns/turn_service.py",
        "            if is_other and live.first_output is not None:\n                return None\n",
        "",
        ("tests/unit/http/test_streams.py",),
    ),
    Fault(
        "a stream without output ends with an answer that it has not shown",
        f"{ENGINE}/turns/turn_service.py",
        "if facts.output and live.first_output is None:",
        "if False:",
        ("tests/unit/http/test_streams.py",),
    ),
    Fault(
        "a checkpoint forgets the items that the model had finished",
        f"{ENGINE}/streaming/partial_output.py",
        "return (*finished, *self.unfinished())",
        "return self.unfinished()",
        (f"{BACKGROUND}::test_an_item_that_was_finished_survives_a_death_during_the_next_one",),
    ),
    Fault(
        "a stream ends with events that were never kept",
        f"{ENGINE}/turns/executor.py",
        """                result=encode_answer(recorded),
                journal=journal,
""",
        """                result=encode_answer(recorded),
""",
        ("tests/integration/test_stream_ends.py",),
    ),
    Fault(
        "the last events of a background stream are neither kept nor told",
        f"{ENGINE}/streaming/journal_writer.py",
        "        return self._live.uncommitted()",
        "        return None",
        ("tests/integration/test_stream_ends.py",),
    ),
    Fault(
        "a background stream is told before it is kept",
        f"{ENGINE}/streaming/live_response.py",
        "        return max(self._committed, self._prologue_end)",
        "        return self.next_number",
        ("tests/unit/engine/streaming/test_live_response.py",),
    ),
    Fault(
        "the end is told before it is recorded",
        f"{ENGINE}/turns/executor.py",
        """        ended = await run.finish(command)
        text = plain.text if plain is not None and is_usual else None
        facts = response_facts(run, request, recorded.status, output, recorded, text)
        if writer is not None:
            writer.end(journal, facts)
""",
        """        text = plain.text if plain is not None and is_usual else None
        facts = response_facts(run, request, recorded.status, output, recorded, text)
        if writer is not None:
            writer.end(journal, facts)
        ended = await run.finish(command)
""",
        ("tests/unit/http/test_streams.py", "tests/integration/test_failure_modes_history.py"),
    ),
    Fault(
        "a text that was streamed is not made durable",
        f"{ENGINE}/streaming/journal_writer.py",
        "            text = partial.checkpoint()\n",
        "            partial.has_changed = False\n",
        (f"{BACKGROUND}::test_text_that_was_streamed_survives_the_death_of_the_process",),
    ),
    Fault(
        "a reader that is too slow is held in memory without bound",
        f"{ENGINE}/streaming/live_response.py",
        "        if self.held_bytes <= WINDOW_BYTES or not self._drops_unread:\n",
        "        if self.held_bytes >= 0:\n",
        ("tests/unit/http/test_streams.py",),
    ),
    Fault(
        "a stream drops what a reader that keeps up has not read",
        f"{ENGINE}/streaming/live_response.py",
        "        needed = [reader.position + 1 for reader in self._readers if reader.keeps_up]\n",
        "        needed = list[int]()\n",
        (LONG_STREAMS,),
    ),
    Fault(
        "a reader that has stalled is waited for without an end",
        f"{ENGINE}/streaming/live_response.py",
        "return self._loop.time() - self._heard_at <= STALL_SECONDS",
        "return True",
        ("tests/unit/engine/streaming/test_live_response.py",),
    ),
    Fault(
        "a stream that cannot be continued does not say so",
        "src/holdfast/http/server/sse.py",
        "            await request.send(encode.error(error, source.position + 1))\n",
        "",
        ("tests/unit/http/test_streams.py",),
    ),
    Fault(
        "the error of a stream has no code of its own",
        "src/holdfast/core/openai/response.py",
        "    if code is None or code == HoldfastError.code:\n",
        "    if True:\n",
        ("tests/unit/http/test_streams.py",),
    ),
    Fault(
        "what repeats a long text is encoded for nobody",
        "src/holdfast/core/openai/stream_events.py",
        'if is_long and kind.endswith(".done"):',
        "if False:",
        ("tests/unit/engine/streaming/test_live_response.py",),
    ),
    Fault(
        "a stream refers to its readers",
        f"{ENGINE}/streaming/live_response.py",
        "        self._readers: WeakSet[LiveCursor] = WeakSet()\n",
        "        self._readers: set[LiveCursor] = set()\n",
        ("tests/unit/engine/streaming/test_live_response.py",),
    ),
)

WAKEUPS = (
    Fault(
        "the feed loses a wake-up",
        f"{ENGINE}/streaming/event_feed.py",
        "                events = await self._read.feed(tenant, after=after, limit=BATCH)\n",
        "                events = await self._read.feed(tenant, after=after, limit=BATCH)\n"
        "                news = poller.news\n",
        ("tests/integration/test_feed_wakeups.py",),
    ),
    Fault(
        "a follower that waited reads again what other tenants did",
        f"{ENGINE}/streaming/event_feed.py",
        "after = max(after, news.begins)",
        "pass",
        ("tests/unit/engine/streaming/test_event_feed.py",),
    ),
    Fault(
        "the feed of a session loses a wake-up",
        f"{ENGINE}/streaming/event_feed.py",
        "                events = await self._read.events(session_id, after=after, limit=BATCH)\n",
        "                events = await self._read.events(session_id, after=after, limit=BATCH)\n"
        "                news = poller.news\n",
        ("tests/integration/test_feed_wakeups.py",),
    ),
    Fault(
        "a stop leaves turns without an answer that were never begun",
        f"{ENGINE}/turns/turn_service.py",
        "            ticket.settle(_stopped())\n",
        "            del ticket\n",
        ("tests/integration/test_stopping.py",),
    ),
    Fault(
        "a stop leaves a request without an answer that runs its own turn",
        f"{ENGINE}/turns/turn_service.py",
        "            raise _stopped() from None\n",
        "            raise\n",
        ("tests/integration/test_stopping.py",),
    ),
    Fault(
        "a stop leaves streams without an end that were never begun",
        f"{ENGINE}/turns/turn_service.py",
        """            if live is not None:
                await self._close_live(live, ticket.turn)
            ticket.settle""",
        """            ticket.settle""",
        ("tests/integration/test_stopping.py",),
    ),
    Fault(
        "a worker that was taken for dead goes on under its name",
        f"{ENGINE}/sessions/worker.py",
        """            self.id = WorkerId(self._ids.new("wrk"))
            await self._store.enlist(self.id, lease)
""",
        "",
        ("tests/unit/engine/sessions/test_worker.py", "tests/crash/test_processes.py"),
    ),
    Fault(
        "a lease that is over by the clock is not watched any longer",
        f"{ENGINE}/sessions/worker.py",
        "worker.is_dead or (worker.is_late and seen[worker.id][1] >= self._lease_seconds)",
        "worker.is_gone",
        ("tests/unit/engine/sessions/test_worker.py", "tests/simulation/test_worlds.py"),
    ),
    Fault(
        "an outage of the store counts as silence of other workers",
        f"{ENGINE}/sessions/worker.py",
        "            self._watch.start_over()\n",
        "",
        ("tests/unit/engine/sessions/test_worker.py",),
    ),
    Fault(
        "a run is taken for lost before its end is written",
        f"{ENGINE}/sessions/worker.py",
        "for name, where in unclaimed.items() if name not in self._deferred}",
        "for name, where in unclaimed.items()}",
        ("tests/unit/engine/sessions/test_abandoned_turns.py",),
    ),
    Fault(
        "a repeat asks again and again for a run of its own process",
        f"{ENGINE}/sessions/gateway.py",
        "return turn.source in RUN_AGAIN or turn.owner == self.worker.id",
        "return turn.source in RUN_AGAIN",
        ("tests/unit/engine/embedded/test_ended_leases.py",),
    ),
    Fault(
        "turns that nobody waits for are not taken up after a death",
        f"{ENGINE}/sessions/worker.py",
        "if turn.source in RUN_AGAIN and self._registry.claim_turn(turn.id):",
        "if False:",
        ("tests/crash/test_recovered_turns.py",),
    ),
    Fault(
        "a turn that waited too long waits on",
        f"{ENGINE}/sessions/lane_queue.py",
        "until = began + context.settings.max_wait_seconds\n",
        "until = began + context.settings.max_wait_seconds + 3600.0\n",
        ("tests/unit/http/test_streams.py", "tests/unit/engine/embedded/test_turn_handle.py"),
    ),
)

RECOGNITION = (
    Fault(
        "a regenerate is not bound to the turn that it was compared with",
        f"{ENGINE}/turns/input_matching.py",
        "after_turn=outline.session.turn_count if is_again else None,",
        "after_turn=None,",
        ("tests/integration/test_turns_in_between.py",),
    ),
    Fault(
        "a request is not bound to the items that it was compared with",
        f"{ENGINE}/turns/input_matching.py",
        "        diff.rewind,\n        outline.settled_seq,\n",
        "        diff.rewind,\n        None,\n",
        ("tests/integration/test_turns_in_between.py",),
    ),
    Fault(
        "a first question that is asked again is new",
        f"{ENGINE}/turns/input_matching.py",
        "    if diff is None or not is_asked_again(session):\n",
        "    if True:\n",
        ("tests/unit/http/test_whole_history.py",),
    ),
    Fault(
        "a message that equals the first question is that question, whoever sent the last turn",
        f"{ENGINE}/turns/input_matching.py",
        "    if diff is None or not is_asked_again(session):\n",
        "    if diff is None:\n",
        ("tests/unit/http/test_whole_history.py",),
    ),
    Fault(
        "calls stay beside the words that a client has in place of them",
        f"{ENGINE}/turns/input_matching.py",
        "        diff = find_new(sent, log, is_whole=is_whole)\n    return log, diff",
        "        pass\n    return log, diff",
        ("tests/unit/http/test_whole_history.py",),
    ),
)

TOOLS = (
    Fault(
        "a call whose output was hidden is run again",
        f"{ENGINE}/turns/tool_loop.py",
        "calls=tuple(c for c in open_calls.calls if c.item_id not in ended)",
        "calls=open_calls.calls",
        ("tests/tools/test_tool_loop.py", "tests/tools/test_approval_answers.py"),
    ),
    Fault(
        "a denied call is run",
        f"{ENGINE}/turns/tool_loop.py",
        "if approval is not None and not approval.approve:",
        "if False:",
        ("tests/simulation/test_worlds.py",),
    ),
)

LONG_SESSIONS = (
    Fault(
        "a session whose model's window nobody knows grows for ever",
        f"{ENGINE}/model_call/compactor.py",
        "        window = known or settings.unknown_window_tokens\n",
        "        window = known\n",
        ("tests/integration/test_unknown_windows.py",),
    ),
    Fault(
        "a turn without fields is not compared with the assumed window",
        f"{ENGINE}/model_call/caller.py",
        "compactor.has_windows or request.fields or not is_small\n",
        "compactor.has_windows or request.fields\n",
        ("tests/integration/test_unknown_windows.py",),
    ),
    Fault(
        "a compaction does not say that its window was assumed",
        f"{ENGINE}/model_call/compactor.py",
        "limit, assumed = most, window if known is None else None\n",
        "limit, assumed = most, None\n",
        ("tests/integration/test_unknown_windows.py",),
    ),
    Fault(
        "a long history is counted and summarized on the event loop",
        f"{ENGINE}/model_call/long_histories.py",
        "    return await asyncio.to_thread(function, items[:])\n",
        "    return function(items[:])\n",
        ("tests/integration/test_long_contexts.py",),
    ),
    Fault(
        "a long history is projected on the event loop",
        f"{ENGINE}/model_call/caller.py",
        "type(history) is not SharedPrefix or history.length > LONG_HISTORY\n",
        "type(history) is not SharedPrefix\n",
        ("tests/integration/test_long_contexts.py",),
    ),
    Fault(
        "a long history is written for its upstream on the event loop",
        f"{ENGINE}/model_call/caller.py",
        "    return LargePrefix(items.shared, items.length), digest\n",
        "    return items, digest\n",
        ("tests/integration/test_long_contexts.py",),
    ),
    Fault(
        "a long context is read in one piece",
        "src/holdfast/stores/sql/store.py",
        "        if session.head_seq > LONG_ROWS:\n",
        "        if False:\n",
        ("tests/integration/test_long_contexts.py",),
    ),
)

ENGINE_FAULTS = (*RUNS, *LONG_SESSIONS, *STREAMS, *WAKEUPS, *RECOGNITION, *TOOLS)
