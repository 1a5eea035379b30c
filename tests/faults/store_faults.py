"""Faults in the stores: durability, filters, liveness of workers."""

from tests.faults.fault import Fault

STORES = "src/holdfast/stores"
CONTRACT = "tests/contract/test_store.py"
PROCESSES = "tests/crash/test_processes.py"

DURABILITY = (
    Fault(
        "commits are not synced",
        f"{STORES}/sqlite/connection.py",
        "pragma synchronous = full",
        "pragma synchronous = normal",
        ("tests/crash/test_power_loss.py",),
    ),
    Fault(
        "a failed commit is answered as done on SQLite",
        f"{STORES}/sqlite/driver.py",
        """            cursor.execute("commit")
        except BaseException as exc:
            self._roll_back(connection, exc)
            raise
""",
        """            try:
                cursor.execute("commit")
            except sqlite3.Error as exc:
                self._roll_back(connection, exc)
                return results
        except BaseException as exc:
            self._roll_back(connection, exc)
            raise
""",
        ("tests/contract/test_failed_commits.py",),
    ),
    Fault(
        "a failed commit is answered as done on PostgreSQL",
        f"{STORES}/postgres/driver.py",
        """            await connection.execute("commit")
        except BaseException as exc:
""",
        """            try:
                await connection.execute("commit")
            except asyncpg.PostgresError:
                await connection.execute("rollback")
        except BaseException as exc:
""",
        ("tests/contract/test_failed_commits.py",),
    ),
    Fault(
        "a commit is acknowledged whose wait for a standby somebody ended",
        f"{STORES}/postgres/driver.py",
        "        if self._is_unreplicated:\n",
        "        if False and self._is_unreplicated:\n",
        ("tests/crash/test_replicated_commits.py",),
    ),
    Fault(
        "a statement that is given up is cancelled at the server",
        f"{STORES}/postgres/connect.py",
        "    def _cancel_current_command(self, *_: object) -> None:\n",
        "    def _drop_current_command(self, *_: object) -> None:\n",
        ("tests/crash/test_replicated_commits.py",),
    ),
    Fault(
        "contexts of another server are kept, which this one may not have",
        f"{STORES}/sql/store.py",
        "        known = self._contexts.clear()\n",
        "        known: dict[SessionId, int] = {}\n",
        ("tests/crash/test_lost_commits.py",),
    ),
    Fault(
        "a session that the database lost counts as unknown",
        f"{STORES}/sql/store.py",
        "            if row is None:\n                raise SessionLost(name)\n",
        "            if row is None:\n                return\n",
        ("tests/crash/test_lost_commits.py",),
    ),
    Fault(
        "a turn that the database lost counts as deleted",
        "src/holdfast/engine/sessions/gateway.py",
        "        return session is None or session.deleted_at is None\n",
        "        return False\n",
        ("tests/crash/test_lost_commits.py",),
    ),
    Fault(
        "a batch whose outcome is unknown is tried again as if it were new",
        f"{STORES}/sqlite/driver.py",
        "[replace(command, again=True)]",
        "[command]",
        ("tests/crash/test_io_errors.py",),
    ),
    Fault(
        "what is written to a file that was taken away is answered as done",
        f"{STORES}/sqlite/driver.py",
        "            if link.identity() != link.file:\n",
        "            if link.file is not link.file:\n",
        ("tests/crash/test_storage_faults.py",),
    ),
    Fault(
        "a fenced statement that changed nothing is taken for done",
        f"{STORES}/sqlite/driver.py",
        "except sqlite3.IntegrityError:\n                is_current = False\n",
        "except sqlite3.IntegrityError:\n                is_current = True\n",
        ("tests/unit/stores/sqlite/test_driver.py", f"{CONTRACT}::TestBlocks"),
    ),
)

DISK = (
    Fault(
        "a gateway whose disk has room for its lease alone is ready",
        "src/holdfast/http/api/health.py",
        "                await gateway.store.check_room()\n",
        "",
        ("tests/acceptance/test_full_disk.py",),
    ),
    Fault(
        "the log that filled the disk is not emptied",
        f"{STORES}/sqlite/driver.py",
        "            self._empty_log()\n\n    def _forget_writer",
        "            pass\n\n    def _forget_writer",
        ("tests/unit/stores/sqlite/test_driver.py",),
    ),
    Fault(
        "everybody on the machine may read the database",
        f"{STORES}/sqlite/connection.py",
        "stat.S_IFREG | 0o600",
        "stat.S_IFREG | 0o644",
        ("tests/cli/test_permissions.py",),
    ),
)

FILTERS = (
    Fault(
        "a cursor of the feed may be the place of another tenant's event",
        f"{STORES}/sql/statements.py",
        '"and (select s.tenant from sessions s where s.no = l.session) = ?1"',
        '"and (select ?1 from sessions s where s.no = l.session) = ?1"',
        ("tests/unit/http/test_feed_cursors.py",),
    ),
    Fault(
        "the turn id of a client is every tenant's",
        "src/holdfast/core/ids.py",
        'f"{tenant}\\0{conversation}\\0{client_turn_id}"',
        'f"{conversation}\\0{client_turn_id}"',
        ("tests/unit/http/test_external_turns.py",),
    ),
    Fault(
        "the key of another tenant names its session",
        f"{STORES}/sql/statements.py",
        '_LANE + "where s.tenant = ?1 and s.key = ?2 and s.is_live = 1"',
        '_LANE + "where (s.tenant = ?1 or s.tenant <> ?1) and s.key = ?2 and s.is_live = 1"',
        (f"{CONTRACT}::TestIdentity", f"{CONTRACT}::TestOnce"),
    ),
    Fault(
        "sessions of other tenants are listed",
        f"{STORES}/sql/statements.py",
        '_SESSION + "where s.tenant = ?1 and s.is_visible = 1 and',
        '_SESSION + "where (s.tenant = ?1 or s.tenant <> ?1) and s.is_visible = 1 and',
        ("tests/unit/http/test_isolation.py",),
    ),
    Fault(
        "an idempotency key is every tenant's",
        f"{STORES}/sql/statements.py",
        "from idempotency where tenant = ?1 and key = ?2",
        "from idempotency where (tenant = ?1 or tenant <> ?1) and key = ?2",
        (f"{CONTRACT}::TestOnce",),
    ),
    Fault(
        "the feed tells of other tenants",
        f"{STORES}/sql/statements.py",
        '    "where s.tenant = ?1 and s.is_visible = 1 and s.deleted_at is null "\n)',
        '    "where (s.tenant = ?1 or s.tenant <> ?1) and s.is_visible = 1 "\n'
        '    "and s.deleted_at is null "\n)',
        ("tests/contract/test_feed.py",),
    ),
    Fault(
        "stored completions of other tenants are shown",
        f"{STORES}/sql/statements.py",
        '"where c.tenant = ?1 and d.turn_id is null "',
        '"where (c.tenant = ?1 or c.tenant <> ?1) and d.turn_id is null "',
        (f"{CONTRACT}::TestIdentity",),
    ),
    Fault(
        "histories of other tenants are found by what they say",
        f"{STORES}/sql/statements.py",
        '"where t.tenant = ?1 and s.deleted_at is null and t.history_hash in ("',
        '"where (t.tenant = ?1 or t.tenant <> ?1) and s.deleted_at is null "'
        '"and t.history_hash in ("',
        (f"{CONTRACT}::TestIdentity",),
    ),
    Fault(
        "items of other tenants are referred to",
        f"{STORES}/sql/statements.py",
        "from item_places where tenant = ?1 and item_id = ?2",
        "from item_places where (tenant = ?1 or tenant <> ?1) and item_id = ?2",
        (f"{CONTRACT}::TestIdentity",),
    ),
    Fault(
        "the bytes of other tenants are counted",
        f"{STORES}/sql/statements.py",
        'on s.no = l.session "\n    "where s.tenant = ?1",',
        'on s.no = l.session "\n    "where s.tenant = ?1 or s.tenant <> ?1",',
        (f"{CONTRACT}::TestIdentity",),
    ),
    Fault(
        "a turn of another tenant is read",
        f"{STORES}/sql/queries.py",
        "    if found is None or found.tenant != tenant:\n        return None\n",
        "    if found is None:\n        return None\n",
        (f"{CONTRACT}::TestIdentity",),
    ),
    Fault(
        "a response of another tenant is read",
        f"{STORES}/sql/queries.py",
        "if turn is None or turn.tenant != tenant or step > turn.step:",
        "if turn is None or step > turn.step:",
        (f"{CONTRACT}::TestIdentity",),
    ),
    Fault(
        "hidden sessions are told of",
        f"{STORES}/sql/statements.py",
        '    "where s.tenant = ?1 and s.is_visible = 1 and s.deleted_at is null "\n)',
        '    "where s.tenant = ?1 and s.deleted_at is null "\n)',
        ("tests/contract/test_feed.py",),
    ),
    Fault(
        "a fact that commits late is passed over",
        f"{STORES}/sql/statements.py",
        '_SETTLED = "and l.txid < (select txid from feed_horizon) "',
        '_SETTLED = ""',
        ("tests/contract/test_feed.py",),
    ),
    Fault(
        "a dump on another server is numbered from its own transactions",
        f"{STORES}/postgres/driver.py",
        "if last is not None and last >= current + shift:",
        "if False:",
        ("tests/contract/test_feed.py",),
    ),
    Fault(
        "items are left by an erasure",
        f"{STORES}/sql/statements.py",
        '"update log set body = ?3, items = null, request = null, record = null "',
        '"update log set body = ?3, request = null, record = null "',
        (f"{CONTRACT}::TestForks", f"{CONTRACT}::TestLifecycle"),
    ),
    Fault(
        "generations begin again after an erasure",
        f"{STORES}/sql/statements.py",
        '"select max(generation) from sessions where tenant = ?1 and key = ?2"',
        '"select max(generation) from sessions where tenant = ?1 and key = ?2 "\n'
        '    "and deleted_at is null"',
        (f"{CONTRACT}::TestIdentity",),
    ),
)

WORKERS = (
    Fault(
        "a worker that was taken for dead renews its lease",
        f"{STORES}/sql/command_plans.py",
        "if row is not None and row[0] != EXPIRED:",
        "if row is not None:",
        (f"{CONTRACT}::TestRecovery",),
    ),
    Fault(
        "a worker is buried although it has renewed its lease",
        f"{STORES}/sql/command_plans.py",
        "if command.alive_until is not None and command.alive_until != row[0]:",
        "if False:",
        (f"{CONTRACT}::TestRecovery",),
    ),
    Fault(
        "a missing token keeps a lane",
        f"{STORES}/sql/worker_locks.py",
        "        except FileNotFoundError:\n            return False\n",
        "        except FileNotFoundError:\n            return True\n",
        (f"{PROCESSES}::test_a_killed_process_whose_token_was_removed_leaves_its_lane_at_once",),
    ),
    Fault(
        "a dead process keeps its lanes until its lease ends",
        f"{STORES}/sql/store.py",
        "living = await self._tokens.living("
        "[name for name, lease, _ in leases if lease != EXPIRED])",
        "living = {name for name, lease, _ in leases if lease != EXPIRED}",
        (f"{PROCESSES}::test_a_repeat_that_waits_for_the_turn_of_a_killed_process_resumes_it",),
    ),
    Fault(
        "turns that waited with a dead worker are not found",
        f"{STORES}/sql/statements.py",
        'f"where w.id is null or w.alive_until = {EXPIRED} limit ?2) waited"',
        '"where w.alive_until > ?1 and w.alive_until <= ?1 limit ?2) waited"',
        (f"{CONTRACT}::TestRecovery",),
    ),
    Fault(
        "holds that ran out are not found",
        f"{STORES}/sql/statements.py",
        "from lanes h where h.hold_until <= ?1 limit ?2",
        "from lanes h where h.hold_until <= ?1 - 1000000000 limit ?2",
        (f"{CONTRACT}::TestHolds", f"{CONTRACT}::TestRecovery"),
    ),
    Fault(
        "waiters are not woken by a commit",
        f"{STORES}/sql/store.py",
        "            self.announce(decision.woken, decision.aborted)\n",
        "            pass\n",
        (f"{CONTRACT}::TestLanes", "tests/unit/engine/sessions/test_gateway.py"),
    ),
)

LOG = (
    Fault(
        "an entry is appended behind others than the decision saw",
        f"{STORES}/sql/statements.py",
        """(select n + 1 from log where session = ?1 and n = ?2 - 1 "
        "and not exists (select 1 from log where session = ?1 and n >= ?2))""",
        "(select max(n) + 1 from log where session = ?1 and ?2 > 0)",
        ("tests/unit/stores/sqlite/test_driver.py", "tests/contract/test_postgres.py"),
    ),
    Fault(
        "one turn id is accepted twice",
        f"{STORES}/sql/migrations/0001_log.sql",
        "create unique index log_turn on log (turn, ",
        "create index log_turn on log (turn, ",
        ("tests/contract/test_log_rows.py",),
    ),
    Fault(
        "an entry counts an item too many",
        f"{STORES}/sql/change_writer.py",
        "seq -= sum([len(entry.items) for entry in entries])",
        "seq -= sum([len(entry.items) for entry in entries]) - 1",
        ("tests/unit/stores/sql/test_entries.py", f"{CONTRACT}::TestTranscript"),
    ),
    Fault(
        "text in progress stays after the end of its run",
        f"{STORES}/sql/change_writer.py",
        "write_fields(sql.DROP_PARTIAL)",
        'lambda _: (sql.DROP_PARTIAL, ("",))',
        ("tests/contract/test_log_rows.py",),
    ),
    Fault(
        "the input of a turn that never started is lost at its end",
        f"{STORES}/sql/entries.py",
        "left_input = turn.input if turn.outcome is not None else None",
        "left_input = None",
        ("tests/unit/stores/sql/test_entries.py", f"{CONTRACT}::TestOnce"),
    ),
    Fault(
        "the end of a turn is left out of the index though another entry is before it",
        f"{STORES}/sql/entries.py",
        "return ENDED_NEXT if before.epoch == before.version else ENDED",
        "return ENDED_NEXT",
        ("tests/contract/test_log_rows.py",),
    ),
    Fault(
        "an item has no row in the index of ids though its id tells another place",
        f"{STORES}/sql/change_writer.py",
        'item.item_id[-6:] != f"{item.seq:06x}"',
        'item.item_id[-6:] < "0"',
        ("tests/contract/test_listing.py",),
    ),
    Fault(
        "an item of a plain turn has no row in the index of ids though its id tells another place",
        f"{STORES}/sql/optimistic/plain_turns.py",
        'if item_id is not None and item_id[-6:] != f"{seq:06x}":',
        "if item_id is None:",
        ("tests/unit/stores/sql/optimistic",),
    ),
    Fault(
        "a key that had a session gets a first one again",
        f"{STORES}/sql/optimistic/plain_turns.py",
        '"(select 1 from sessions where tenant = ?3 and key = ?4)),",',
        '"(select 1 from sessions where tenant = ?3 and key = ?4 and is_live = 1)),",',
        ("tests/contract/test_first_turns.py",),
    ),
    Fault(
        "a pooler that gives a connection to many clients is accepted",
        f"{STORES}/postgres/driver.py",
        "            await driver.check_session()\n",
        "            pass\n",
        ("tests/contract/test_poolers.py",),
    ),
    Fault(
        "a process whose turns wait elsewhere is not told",
        f"{STORES}/postgres/listener.py",
        "where w.is_certain or found.others > 0 or found.holders = 0",
        "where w.is_certain or found.holders = 0",
        ("tests/contract/test_postgres.py",),
    ),
    Fault(
        "a batch with a stale lane is read for as a whole",
        f"{STORES}/postgres/driver.py",
        "if not is_changed and not rest:",
        "if is_changed or rest:",
        ("tests/contract/test_postgres.py",),
    ),
    Fault(
        "new sessions of two processes are made in the order of their ids",
        f"{STORES}/postgres/optimistic_batch.py",
        "writes.get(ADD_FIRST_SESSION, []).sort(key=_by_key)",
        "writes.get(ADD_FIRST_SESSION, []).sort(key=repr)",
        ("tests/unit/stores/postgres/test_optimistic_batch.py",),
    ),
    Fault(
        "a run that lost its lane ends the turn that has it now",
        f"{STORES}/sql/optimistic/plain_turns.py",
        "if cached is None or not fence.holds(cached[0].session):",
        "if cached is None:",
        (f"{CONTRACT}::TestFencing", "tests/unit/stores/sql/optimistic"),
    ),
    Fault(
        "a turn that was handed the lane stays in the queue",
        f"{STORES}/sql/optimistic/plain_turns.py",
        "    writes.append((sql.DEQUEUE, (turn_id,)))\n",
        "",
        ("tests/unit/stores/sql/optimistic", "tests/contract/test_plain_queue.py"),
    ),
    Fault(
        "a cached lane keeps the turn that it was handed to among those who wait",
        f"{STORES}/sql/optimistic/plain_turns.py",
        "first, rest = lane.waiting[0], lane.waiting[1:]",
        "first, rest = lane.waiting[0], lane.waiting",
        ("tests/unit/stores/sql/optimistic",),
    ),
    Fault(
        "a batch makes a lane known that others have changed since",
        f"{STORES}/sql/optimistic/plain_turns.py",
        "is_known = cached is not None and cached[0].session.version == before.version",
        "is_known = cached is not None",
        ("tests/unit/stores/sql/optimistic",),
    ),
    Fault(
        "a plain end is left out of the index though another entry is before it",
        f"{STORES}/sql/optimistic/plain_turns.py",
        "ENDED_NEXT if before.epoch == before.version else ENDED",
        "ENDED_NEXT",
        ("tests/contract/test_log_rows.py", "tests/unit/stores/sql/optimistic"),
    ),
    Fault(
        "the last entries of an erased session keep what was said",
        f"{STORES}/sql/command_plans.py",
        "    changes = scrubbed(decision.changes)\n",
        "    changes = scrubbed(decision.changes) and decision.changes\n",
        ("tests/contract/test_log_rows.py",),
    ),
    Fault(
        "the input of a turn that was sent again outlives its erased item",
        f"{STORES}/sql/erasure.py",
        "                body.turn.input = None\n                blanked",
        "                blanked",
        ("tests/contract/test_erased_rows.py",),
    ),
    Fault(
        "of several erased items of an entry only the last is erased",
        f"{STORES}/sql/erasure.py",
        "blanked.items.get(name) or read_items(bytes(entry[2]))",
        "read_items(bytes(entry[2]))",
        ("tests/contract/test_store.py::TestTranscript",),
    ),
    Fault(
        "an item that was read before it was erased is indexed",
        f"{STORES}/sql/search/follower.py",
        "        asks.append((sql.REMOVE_ITEMS, (erased.session, *numbers)))\n",
        "        asks.insert(0, (sql.REMOVE_ITEMS, (erased.session, *numbers)))\n",
        ("tests/contract/test_search_rows.py",),
    ),
    Fault(
        "retired sessions are found by the words of their keys",
        f"{STORES}/sql/search/index.py",
        "if row is not None and (generations or read_session(row).is_live):",
        "if row is not None:",
        ("tests/contract/test_store.py::TestSearch",),
    ),
    Fault(
        "the feed on SQLite passes over the rest of an entry",
        f"{STORES}/sql/statements.py",
        '"and l.txid >= ?2 and l.pos >= ?3 order by l.pos limit ?4"',
        '"and l.txid >= ?2 and l.pos > ?3 order by l.pos limit ?4"',
        ("tests/contract/test_feed.py",),
    ),
)

CLOCKS = (
    Fault(
        "a lease lasts until the clock has caught up with it",
        f"{STORES}/sql/command_plans.py",
        "(sql.CUT_LEASES, (now + max(LONGEST_LEASE_SECONDS, command.lease_seconds),)),",
        "",
        ("tests/contract/test_store.py::TestClockSteps",),
    ),
    Fault(
        "a lease that is over by the clock is an end of its worker",
        f"{STORES}/sql/statements.py",
        "(w.id is null or w.alive_until = {EXPIRED}) limit ?2) ran",
        "(w.id is null or w.alive_until <= ?1) limit ?2) ran",
        ("tests/contract/test_store.py::TestClockSteps",),
    ),
    Fault(
        "a sweep overlooks holds from before the clock was set back",
        f"{STORES}/sql/statements.py",
        "where h.hold_until > ?1 + {MAX_HOLD_SECONDS} ",
        "where h.hold_until > ?1 + 3600000.0 ",
        ("tests/contract/test_store.py::TestClockSteps",),
    ),
)

REPLICAS = (
    Fault(
        "a listener gives up for good on an error that it does not know",
        f"{STORES}/postgres/listener.py",
        "        except Exception:  # noqa: BLE001 - whatever it is, a new connection is made\n",
        "        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):\n",
        ("tests/contract/test_postgres.py",),
    ),
    Fault(
        "a host that hangs keeps a process from the others",
        f"{STORES}/postgres/hosts.py",
        "pause = HEAD_START_SECONDS if one_each else None",
        "pause = None",
        ("tests/contract/test_several_hosts.py",),
    ),
    Fault(
        "pooled connections read without the settings that bound them",
        f"{STORES}/postgres/driver.py",
        "            init=self._connector.prepare,\n",
        "",
        ("tests/contract/test_poolers.py",),
    ),
    Fault(
        "an earlier view of a log is cached whatever was erased since",
        f"{STORES}/cache/context_cache.py",
        "entry.head_seq > session.head_seq or session.has_later_records:",
        "entry.head_seq > session.head_seq:",
        ("tests/contract/test_store.py::TestHiding",),
    ),
    Fault(
        "the outline of a running session comes from its cached context",
        f"{STORES}/sql/record_queries.py",
        "    log = contexts.whole_log(session) if session.active_turn_id is None else None\n",
        "    log = contexts.whole_log(session)\n",
        ("tests/contract/test_outlines.py",),
    ),
    Fault(
        "a cached log that lacks entries of another process is taken for whole",
        f"{STORES}/cache/context_cache.py",
        "        is_whole = len(items) == session.head_seq\n",
        "        is_whole = True\n",
        ("tests/contract/test_outlines.py",),
    ),
    Fault(
        "a stored history hash is not compared with the cached log",
        f"{STORES}/sql/queries.py",
        "        return extend_hash(EMPTY_HISTORY, steps_hashed) == row.history_hash\n",
        "        return True\n",
        ("tests/contract/test_history_hashes.py",),
    ),
    Fault(
        "a turn that was compared with an earlier log starts in one step",
        "src/holdfast/core/transaction/plain_turns.py",
        "    if command.seen_seq not in (None, session.head_seq):\n",
        "    if False:\n",
        ("tests/unit/core/transaction/test_plain_turns.py",),
    ),
    Fault(
        "an erasure does not lock the forks",
        f"{STORES}/postgres/row_locks.py",
        "case cmd.Delete() | cmd.Hide(erase=True):",
        "case cmd.Delete():",
        ("tests/contract/test_fork_locks.py",),
    ),
)

USAGE = (
    Fault(
        "two followers of the log add up the same turns",
        f"{STORES}/sql/usage.py",
        "    if (position or (0, 0)) != command.after:\n",
        "    if False:\n",
        ("tests/contract/test_usage.py", CONTRACT),
    ),
    Fault(
        "a turn that was sent again is counted twice",
        f"{STORES}/sql/usage.py",
        'if not (body.runs and body.runs[0].id == ""):',
        "if False:",
        ("tests/contract/test_usage.py",),
    ),
    Fault(
        "a report lacks what was not added up yet",
        f"{STORES}/sql/usage.py",
        "sums.add(used for used in part.sums if first <= used.start < last)",
        "pass",
        ("tests/contract/test_usage.py",),
    ),
    Fault(
        "a report that lacks turns is called complete",
        f"{STORES}/sql/usage.py",
        "complete_until=part.at",
        "complete_until=None",
        ("tests/contract/test_usage.py",),
    ),
)

STORE_FAULTS = (*USAGE, *DURABILITY, *DISK, *FILTERS, *WORKERS, *LOG, *CLOCKS, *REPLICAS)
