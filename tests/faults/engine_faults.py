"""Faults of the engine: runs, streams, wake-ups, recognition, stops."""

from tests.faults.fault import Fault

ENGINE = "src/holdfast/engine"
BACKGROUND = "tests/acceptance/test_background.py"

RUNS = (
    Fault(
        "an end whose outcome is unknown is sent again as if it were new",
        f"{ENGINE}/turn_runner.py",
        """                if not left:
                    raise
                command = replace(command, again=True)
                await asyncio.sleep(pause)
                pause *= 2
            except Exception as exc:""",
        """                if not left:
                    raise
                await asyncio.sleep(pause)
                pause *= 2
            except Exception as exc:""",
        ("tests/integration/test_failure_modes_history.py",),
    ),
    Fault(
        "the state of a provider is saved with an answer that is not whole",
        f"{ENGINE}/responder.py",
        'provider_state=answer.state if answer.status == "completed" else None,',
        "provider_state=answer.state,",
        ("tests/integration/test_unsound_answers.py",),
    ),
    Fault(
        "calls of an answer that is not whole are waited for",
        f"{ENGINE}/responder.py",
        'pending_calls=_pending(items) if answer.status == "completed" else (),',
        "pending_calls=_pending(items),",
        ("tests/integration/test_unsound_answers.py",),
    ),
    Fault(
        "a run that lost its lane goes on asking",
        f"{ENGINE}/desk.py",
        """                run.on_lost(task.cancel)
                outcome = await""",
        """                outcome = await""",
        ("tests/unit/ingress/test_streams.py", "tests/unit/ingress/test_background.py"),
    ),
    Fault(
        "heals of a lost attempt are forgotten",
        f"{ENGINE}/asking.py",
        "            if asking.run.turn.attempts > 1:\n",
        "            if asking.run.turn.attempts > 1000:\n",
        ("tests/acceptance/test_heals_across_restarts.py",),
    ),
    Fault(
        "a heal is not recorded",
        f"{ENGINE}/asking.py",
        "                await self._record(asking.run, treatment, question)\n",
        "",
        ("tests/integration/test_heals.py",),
    ),
    Fault(
        "a conversation that a broken turn may have touched is gone on from",
        f"{ENGINE}/question.py",
        "if use.is_mutable and (has_run_before or not _is_untouched(question, state)):",
        "if False:",
        ("tests/integration/test_unsound_answers.py",),
    ),
    Fault(
        "a cached projection is used although other items are quarantined",
        f"{ENGINE}/projections.py",
        "    if made.quarantined != quarantined:\n        return False\n",
        "",
        ("tests/properties/test_growing_projections.py",),
    ),
    Fault(
        "a cached projection is used although an output came for a call in it",
        f"{ENGINE}/projections.py",
        "return not any(item.call_id in made.call_ids for item in history[known.items.length :])",
        "return True",
        ("tests/properties/test_growing_projections.py",),
    ),
)

STREAMS = (
    Fault(
        "a checkpoint forgets the items that the model had finished",
        f"{ENGINE}/partial.py",
        "return (*done, *self.items())",
        "return self.items()",
        (f"{BACKGROUND}::test_an_item_that_was_finished_survives_a_death_during_the_next_one",),
    ),
    Fault(
        "a stream ends with events that were never kept",
        f"{ENGINE}/responder.py",
        """failure=self._told(error))),
                journal=journal,
""",
        """failure=self._told(error))),
""",
        ("tests/integration/test_stream_ends.py",),
    ),
    Fault(
        "the last events of a background stream are neither kept nor told",
        f"{ENGINE}/journal.py",
        "        return self._live.unkept()",
        "        return None",
        ("tests/integration/test_stream_ends.py",),
    ),
    Fault(
        "a background stream is told before it is kept",
        f"{ENGINE}/live.py",
        "        return max(self._kept, self._told)",
        "        return self.next_number",
        ("tests/unit/ingress/test_background.py",),
    ),
    Fault(
        "the end is told before it is recorded",
        f"{ENGINE}/responder.py",
        """        ended = await run.finish(
            Finish(
                fence=run.fence,
                outcome="completed",""",
        """        if writer is not None:
            writer.end(journal, facts_of(run.turn.id, run, request, recorded.status,
                                         answer.items, recorded))
        ended = await run.finish(
            Finish(
                fence=run.fence,
                outcome="completed",""",
        ("tests/unit/ingress/test_streams.py", "tests/integration/test_failure_modes_history.py"),
    ),
    Fault(
        "a text that was streamed is not made durable",
        f"{ENGINE}/journal.py",
        "            text = partial.take()\n",
        "            partial.has_news = False\n",
        (f"{BACKGROUND}::test_text_that_was_streamed_survives_the_death_of_the_process",),
    ),
    Fault(
        "a reader that is too slow is held in memory without bound",
        f"{ENGINE}/live.py",
        "        if self.held_bytes <= WINDOW_BYTES:\n            return\n",
        "        if self.held_bytes >= 0:\n            return\n",
        ("tests/unit/ingress/test_streams.py",),
    ),
)

WAKEUPS = (
    Fault(
        "the feed loses a wake-up",
        f"{ENGINE}/feed.py",
        "                found = await self._read.feed(tenant, after=after, limit=BATCH)\n",
        "                found = await self._read.feed(tenant, after=after, limit=BATCH)\n"
        "                news = look_out.news\n",
        ("tests/integration/test_feed_wakeups.py",),
    ),
    Fault(
        "the feed of a session loses a wake-up",
        f"{ENGINE}/feed.py",
        "                found = await self._read.events(session_id, after=after, limit=BATCH)\n",
        "                found = await self._read.events(session_id, after=after, limit=BATCH)\n"
        "                news = look_out.news\n",
        ("tests/integration/test_feed_wakeups.py",),
    ),
    Fault(
        "a stop leaves turns without an answer that were never begun",
        f"{ENGINE}/desk.py",
        "            ticket.settle(_stopped())\n",
        "            del ticket\n",
        ("tests/integration/test_stopping.py",),
    ),
    Fault(
        "a stop leaves streams without an end that were never begun",
        f"{ENGINE}/desk.py",
        """            if live is not None:
                await self._close(live, ticket.turn)
            ticket.settle""",
        """            ticket.settle""",
        ("tests/integration/test_stopping.py",),
    ),
    Fault(
        "a worker that was taken for dead goes on under its name",
        f"{ENGINE}/worker.py",
        """            self.id = WorkerId(self._ids.new("wrk"))
            await self._store.enlist(self.id, lease)
""",
        "",
        ("tests/unit/engine/test_worker.py", "tests/crash/test_processes.py"),
    ),
    Fault(
        "turns that nobody waits for are not taken up after a death",
        f"{ENGINE}/worker.py",
        "if turn.source in RUN_AGAIN and self._wakeups.begin_care(turn.id):",
        "if False:",
        ("tests/crash/test_heirs.py",),
    ),
    Fault(
        "a turn that waited too long waits on",
        f"{ENGINE}/gateway.py",
        "if not isinstance(outcome, Started) and until <= self.clock.now():",
        "if False:",
        ("tests/unit/ingress/test_streams.py", "tests/unit/engine/test_turn_handle.py"),
    ),
)

RECOGNITION = (
    Fault(
        "a regenerate is not bound to the turn that it was compared with",
        f"{ENGINE}/recognition.py",
        "after_turn=outline.session.turn_count if is_again else None,",
        "after_turn=None,",
        ("tests/integration/test_turns_in_between.py",),
    ),
    Fault(
        "a request is not bound to the items that it was compared with",
        f"{ENGINE}/recognition.py",
        "        found.rewind,\n        outline.settled_seq,\n",
        "        found.rewind,\n        None,\n",
        ("tests/integration/test_turns_in_between.py",),
    ),
)

ENGINE_FAULTS = (*RUNS, *STREAMS, *WAKEUPS, *RECOGNITION)
