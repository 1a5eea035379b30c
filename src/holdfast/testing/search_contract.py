"""The search index follows the log, finds visible items, and drops erased ones."""

import asyncio
from typing import Any

import pytest

from holdfast.core.errors import InvalidInput
from holdfast.core.ids import Key, SessionId, Tenant
from holdfast.core.model.session import Session
from holdfast.core.transaction.commands import Delete, Hide, IndexLog, Reset, SumUsage
from holdfast.ports.search import SearchPage, SearchQuery
from holdfast.ports.store import SessionQuery
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient

BATCH = 50
HELD_BACK_SECONDS = 60.0
PAUSE_SECONDS = 0.01


async def index(caller: StoreClient) -> None:
    """Index all committed entries."""
    while await caller.store.search.backlog():
        await caller.submit(await next_backlog(caller))


async def next_backlog(caller: StoreClient) -> IndexLog:
    """Return the command that indexes the next entries.

    On PostgreSQL, an open transaction anywhere in the server prevents later entries from being
    read.
    """
    async with asyncio.timeout(HELD_BACK_SECONDS):
        while True:
            command = await caller.store.search.read_backlog(caller.worker, BATCH)
            if command is not None:
                return command
            await asyncio.sleep(PAUSE_SECONDS)


async def next_usage(caller: StoreClient) -> SumUsage:
    """Return the command that adds up what the next entries used; see `next_backlog`."""
    async with asyncio.timeout(HELD_BACK_SECONDS):
        while True:
            command = await caller.store.usage.read_backlog(caller.worker, BATCH)
            if command is not None:
                return command
            await asyncio.sleep(PAUSE_SECONDS)


async def whole_backlog(caller: StoreClient) -> IndexLog:
    """Return the command that indexes every entry; wait until all of them can be read."""
    positions = await caller.store.search.backlog()
    async with asyncio.timeout(HELD_BACK_SECONDS):
        while True:
            command = await next_backlog(caller)
            if command.upto[1] - command.after[1] == positions:
                return command
            await asyncio.sleep(PAUSE_SECONDS)


async def search(caller: StoreClient, text: str, **more: Any) -> SearchPage:
    """Search the caller's tenant."""
    query = SearchQuery(text=text, **more)
    return await caller.store.search.search(caller.tenant, query)


async def found(caller: StoreClient, text: str, **more: Any) -> list[str]:
    """Return the snippets of the hits."""
    return [hit.snippet for hit in (await search(caller, text, **more)).hits]


async def _hide(caller: StoreClient, session: Session, seq: int, *, erase: bool) -> None:
    await caller.submit(
        Hide(tenant=caller.tenant, session_id=session.id, from_seq=seq, to_seq=seq, erase=erase)
    )


class SearchContract:
    """Visible items of the log are found; everything else is not."""

    async def test_words_are_found_whatever_their_case_accents_and_script(
        self, caller: StoreClient
    ) -> None:
        await caller.append("Zoë likes crème brûlée", key="a")
        await caller.append("我住在東京都。她住在大阪", key="b")
        await caller.append("สวัสดีครับ หมา", key="c")
        await caller.append("हिन्दी भाषा", key="d")
        await index(caller)
        assert await found(caller, "ZOE creme") == ["Zoë likes crème brûlée"]
        for text in ("東京", "京都", "東京都", "京", "都", "住在大阪"):
            assert await found(caller, text) == ["我住在東京都。她住在大阪"], text
        assert await found(caller, "ครับ") == ["สวัสดีครับ หมา"]
        assert await found(caller, "भाषा") == ["हिन्दी भाषा"]
        assert await found(caller, "阪大") == []

    async def test_a_batch_says_whether_it_took_all_that_was_asked_for(
        self, caller: StoreClient
    ) -> None:
        await caller.append("one", key="a")
        await caller.append("two", key="b")
        await next_backlog(caller)
        part = await caller.store.search.read_backlog(caller.worker, 1)
        assert part is not None
        assert part.has_more
        while (rest := await next_backlog(caller)).has_more:
            await caller.submit(rest)
        await caller.submit(rest)

    async def test_all_words_must_match_phrases_in_order_prefixes_from_the_start(
        self, caller: StoreClient
    ) -> None:
        await caller.append("the vet saw the dog", "the dog saw the veterinary", key="k")
        await index(caller)
        assert len(await found(caller, "dog saw")) == 2
        assert await found(caller, '"dog saw"') == ["the dog saw the veterinary"]
        assert len(await found(caller, "vet*")) == 2
        assert await found(caller, "vet") == ["the vet saw the dog"]

    async def test_phrases_of_long_texts_are_found_and_only_in_order(
        self, caller: StoreClient
    ) -> None:
        signs = "".join(chr(0x4E00 + number * 7 % 20_000) for number in range(19_000))
        often = "red green " * 400 + "blue end"
        await caller.append(signs, key="a")
        await caller.append(often, key="b")
        await index(caller)
        assert len(await found(caller, signs[18_000:18_004])) == 1
        assert len(await found(caller, '"green blue end"')) == 1
        assert await found(caller, '"end blue"') == []
        assert (await search(caller, f"{signs[18_001]}{signs[18_000]}")).hits == ()

    async def test_if_no_item_has_all_words_those_with_some_are_listed_the_best_first(
        self, caller: StoreClient
    ) -> None:
        await caller.append("a red car", "a blue car and a bike", "a bike", key="k")
        await index(caller)
        page = await search(caller, "car bike unicorn")
        assert not page.matches_all
        assert page.hits[0].snippet == "a blue car and a bike"
        assert len(page.hits) == 3
        assert (await search(caller, "unicorn")).hits == ()

    async def test_a_hit_says_where_the_item_is_and_what_matched(self, caller: StoreClient) -> None:
        session = (await caller.append("first", "the second one", key="k")).session
        await index(caller)
        (hit,) = (await search(caller, "second")).hits
        assert (hit.session_id, hit.key, hit.generation, hit.seq) == (session.id, "k", 1, 2)
        assert [hit.snippet[start:end] for start, end in hit.highlights] == ["second"]
        assert hit.role == "user"

    async def test_filters_narrow_the_search(self, caller: StoreClient, clock: ManualClock) -> None:
        early = clock.now()
        await caller.converse("apple pie", "an apple a day", key="agent:main:ada")
        clock.advance(3600)
        other = (await caller.append("apple juice", key="agent:other:bob")).session
        await index(caller)
        assert len(await found(caller, "apple")) == 3
        assert await found(caller, "apple", key=Key("agent:other:bob")) == ["apple juice"]
        assert await found(caller, "apple", key=Key("agent:other")) == []
        assert len(await found(caller, "apple", key_prefix="agent:main:")) == 2
        assert await found(caller, "apple", session_id=other.id) == ["apple juice"]
        assert await found(caller, "apple", roles=("assistant",)) == ["an apple a day"]
        assert len(await found(caller, "apple", roles=("assistant", "user"))) == 3
        assert await found(caller, "apple", since=early + 1800) == ["apple juice"]
        assert len(await found(caller, "apple", until=early + 1800)) == 2

    async def test_a_prefix_of_a_key_may_end_anywhere(self, caller: StoreClient) -> None:
        keys = ["a:b:c:d:e:f:1", "a:b:c:d:e:g:2", "a:b2", "ab", "b"]
        for key in keys:
            await caller.append(f"apple of {key}", key=key)
        await index(caller)
        for prefix in ("a", "a:", "a:b", "a:b:", "a:b:c:d:e:", "a:b:c:d:e:g", keys[0], "z", "a:z:"):
            page = await search(caller, "apple", key_prefix=prefix)
            expected = {key for key in keys if key.startswith(prefix)}
            assert {hit.key for hit in page.hits} == expected, prefix

    async def test_a_session_is_found_by_the_beginning_and_the_words_of_its_key(
        self, caller: StoreClient
    ) -> None:
        ada = (await caller.append("hello", key="agent:main:Ada Lovelace")).session.id
        grace = (await caller.append("ada", key="agent:main:grace")).session.id
        keys = caller.store.search.sessions
        # The beginning is found before the index has followed the log, words are found after it.
        assert await keys(caller.tenant, "agent:main:g", 10) == [grace]
        assert await keys(caller.tenant, "lovelace", 10) == []
        await index(caller)
        assert await keys(caller.tenant, "agent:main:", 10) == [ada, grace]
        assert await keys(caller.tenant, "agent:main:", 1) == [ada]
        for text in ("lovelace", "LOVE", "ada main", "main:ada", "ada lovel"):
            assert await keys(caller.tenant, text, 10) == [ada], text
        for text in ("lace", "lovelace grace", "++", "\U0010ffff"):
            assert await keys(caller.tenant, text, 10) == [], text
        assert await keys(Tenant("somebody-else"), "ada", 10) == []
        # The words of keys are not those of items.
        assert await found(caller, "lovelace") == []
        assert await found(caller, "ada") == ["ada"]

    async def test_retired_generations_of_a_key_are_found_on_request(
        self, caller: StoreClient
    ) -> None:
        first = (await caller.append("hello", key="agent:ada")).session
        second = await caller.submit(
            Reset(tenant=caller.tenant, session_id=first.id, new_id=SessionId("ses_second"))
        )
        await index(caller)
        for text in ("agent:a", "ada"):
            assert await caller.store.search.sessions(caller.tenant, text, 10) == [second.id]
            listed = await caller.store.search.sessions(caller.tenant, text, 10, generations=True)
            assert set(listed) == {first.id, second.id}
        await caller.submit(Delete(tenant=caller.tenant, session_id=first.id))
        assert await caller.store.search.sessions(caller.tenant, "ada", 10, generations=True) == [
            second.id
        ]

    async def test_a_session_without_a_key_is_searched_by_its_id(self, caller: StoreClient) -> None:
        one, other = [(await caller.append(f"apple {n}")).session for n in (1, 2)]
        await index(caller)
        assert await found(caller, "apple", session_id=one.id) == ["apple 1"]
        assert await found(caller, "apple", session_id=other.id) == ["apple 2"]
        assert await found(caller, "apple", session_id=SessionId("ses_unknown")) == []

    async def test_pages_continue_where_the_last_one_ended(self, caller: StoreClient) -> None:
        await caller.append(*(f"page {number}" for number in range(7)), key="k")
        await index(caller)
        texts: list[str] = []
        after: int | None = None
        while True:
            page = await search(caller, "page", limit=3, after=after)
            texts += [hit.snippet for hit in page.hits]
            if not page.has_more:
                break
            after = page.hits[-1].place
        assert texts == [f"page {number}" for number in reversed(range(7))]

    async def test_the_place_of_a_hit_is_found_by_its_item(self, caller: StoreClient) -> None:
        stranger = Tenant("stranger")
        for number in range(3):
            await caller.append(f"apple {number}", f"pear {number}", key="k")
        await index(caller)
        places, own = caller.store.search.hit_place, caller.store.search.own_hit
        for hit in (await search(caller, "apple")).hits:
            assert await places(caller.tenant, hit.session_id, hit.seq) == hit.place
            assert await places(stranger, hit.session_id, hit.seq) is None
            assert await places(caller.tenant, hit.session_id, 7) is None
            assert await own(caller.tenant, hit.place) == hit.place
            assert await own(stranger, hit.place) is None
        assert await own(caller.tenant, 1_000_000) is None

    async def test_a_list_continues_after_an_item_that_was_erased_since(
        self, caller: StoreClient
    ) -> None:
        session = (await caller.append(*(f"apple {n}" for n in range(4)), key="k")).session
        await index(caller)
        page = await search(caller, "apple", limit=2)
        last = page.hits[-1]
        erased = Hide(
            tenant=caller.tenant, session_id=session.id, from_seq=last.seq, to_seq=last.seq,
            erase=True,
        )  # fmt: skip
        await caller.submit(erased)
        place = await caller.store.search.hit_place(caller.tenant, last.session_id, last.seq)
        rest = await search(caller, "apple", after=place)
        assert [hit.snippet for hit in rest.hits] == ["apple 1", "apple 0"]

    async def test_all_generations_are_found(self, caller: StoreClient) -> None:
        session = (await caller.append("before the reset", key="k")).session
        new_id = SessionId(caller.ids.new("ses"))
        await caller.submit(Reset(tenant=caller.tenant, session_id=session.id, new_id=new_id))
        await caller.append("after the reset", key="k")
        await index(caller)
        page = await search(caller, "reset", key=Key("k"))
        assert [hit.generation for hit in page.hits] == [2, 1]

    async def test_another_tenant_finds_nothing(self, caller: StoreClient) -> None:
        await caller.append("my secret", key="k")
        await index(caller)
        query = SearchQuery(text="secret")
        assert (await caller.store.search.search(Tenant("other"), query)).hits == ()
        scoped = SearchQuery(text="secret", key=Key("k"))
        assert (await caller.store.search.search(Tenant("other"), scoped)).hits == ()

    async def test_erased_items_and_sessions_are_gone_at_once(self, caller: StoreClient) -> None:
        session = (await caller.append("keep this", "erase this", key="k")).session
        await index(caller)
        assert len(await found(caller, "this")) == 2
        await _hide(caller, session, 2, erase=True)
        assert await found(caller, "this") == ["keep this"]
        await caller.submit(Delete(tenant=caller.tenant, session_id=session.id))
        assert await found(caller, "this") == []
        await index(caller)
        assert await found(caller, "this") == []

    async def test_what_was_erased_while_it_was_indexed_is_not_found(
        self, caller: StoreClient
    ) -> None:
        session = (await caller.append("keep this", "erase this", key="k")).session
        late = await next_backlog(caller)
        await _hide(caller, session, 2, erase=True)
        assert await caller.submit(late)
        assert await found(caller, "this") == ["keep this"]
        await index(caller)
        assert await found(caller, "this") == ["keep this"]

    async def test_hidden_items_are_found_only_on_request_and_only_rewound_ones(
        self, caller: StoreClient
    ) -> None:
        run = await caller.start("the first question", key="k")
        await caller.finish(run, "the first answer")
        again = await caller.start("another question", key="k", rewind=(0, 2))
        await caller.finish(again, "another answer")
        session = (await caller.append("hidden question", key="k")).session
        await _hide(caller, session, session.head_seq, erase=False)
        await index(caller)
        assert await found(caller, "question") == ["another question"]
        page = await search(caller, "question", include_hidden=True)
        assert [(hit.snippet, hit.is_hidden) for hit in page.hits] == [
            ("another question", False),
            ("the first question", True),
        ]

    async def test_of_two_followers_each_entry_is_indexed_by_one(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        await caller.append("only once", key="k")
        mine, theirs = await next_backlog(caller), await next_backlog(other)
        assert await caller.submit(mine)
        assert await other.submit(theirs)
        assert await found(caller, "once") == ["only once"]
        assert await caller.store.search.backlog() == 0

    async def test_a_follower_that_is_behind_changes_nothing(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        await caller.append("one", key="k")
        late = await next_backlog(other)
        await index(caller)
        await caller.append("two", key="k")
        await index(caller)
        assert not await other.submit(late)
        assert await found(caller, "one") == ["one"]

    @pytest.mark.parametrize("text", ["", "  ", "!?", '""', "x" * 1001])
    async def test_a_query_without_words_is_refused(self, caller: StoreClient, text: str) -> None:
        with pytest.raises(InvalidInput):
            await search(caller, text)

    @pytest.mark.parametrize("text", ["a' OR 'b", 'x" NEAR y', "a & b | !c", "(x", "col:x", "-a *"])
    async def test_a_query_is_words_and_never_a_language(
        self, caller: StoreClient, text: str
    ) -> None:
        await caller.append("nothing of it", key="k")
        await index(caller)
        assert isinstance(await search(caller, text), SearchPage)

    async def test_sessions_are_listed_by_last_activity(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        keys = ["a", "b", "c", "d"]
        for key in keys:
            await caller.append("x", key=key)
            clock.advance(1)
        await caller.append("again", key="b")
        await index(caller)
        clock.advance(1)
        await caller.append("not indexed yet", key="a")
        listed: list[str | None] = []
        after = None
        while True:
            query = SessionQuery(sort="activity", limit=1, after=after)
            views = await caller.read.sessions(caller.tenant, query)
            if not views:
                break
            listed += [view.session.key for view in views]
            after = views[-1].session.id
        assert listed == ["a", "b", "d", "c"]
        every = await caller.read.sessions(caller.tenant, SessionQuery(sort="activity"))
        assert [view.session.key for view in every] == listed
