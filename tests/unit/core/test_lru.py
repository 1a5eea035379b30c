"""A cache that is bounded by the size it holds."""

from holdfast.core.lru import SizedLru


def test_the_least_recently_used_entry_is_evicted_first() -> None:
    cache: SizedLru[str, str] = SizedLru(10)
    cache.put("a", "A", 4)
    cache.put("b", "B", 4)
    assert cache.get("a") == "A"
    cache.put("c", "C", 4)
    assert list(cache) == ["a", "c"]
    assert cache.get("b") is None
    assert cache.held == 8


def test_a_value_that_is_replaced_gives_its_size_back() -> None:
    cache: SizedLru[str, str] = SizedLru(10)
    cache.put("a", "A", 9)
    cache.put("a", "B", 2)
    assert (cache.get("a"), cache.held, len(cache)) == ("B", 2, 1)


def test_a_value_larger_than_the_cache_is_not_held() -> None:
    cache: SizedLru[str, str] = SizedLru(10)
    cache.put("a", "A", 11)
    assert "a" not in cache
    assert cache.held == 0


def test_entries_can_be_removed() -> None:
    cache: SizedLru[str, str] = SizedLru(10)
    cache.put("a", "A", 1)
    cache.put("b", "B", 1)
    assert cache.pop("a") == "A"
    assert cache.pop("a") is None
    cache.clear()
    assert (len(cache), cache.held) == (0, 0)


def test_a_value_can_be_looked_up_without_counting_as_used() -> None:
    cache: SizedLru[str, str] = SizedLru(2)
    cache.put("a", "A", 1)
    cache.put("b", "B", 1)
    assert (cache.peek("a"), cache.peek("c")) == ("A", None)
    cache.put("c", "C", 1)
    assert list(cache) == ["b", "c"]
    cache.clear()
    assert cache.peek("b") is None
