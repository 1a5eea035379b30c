"""Beginnings of lists, found by what they hold."""

from holdfast.core.projection.prefix_cache import Prefix, PrefixCache, SharedPrefix


def test_a_longer_list_is_known_by_its_beginning() -> None:
    kept: PrefixCache[bytes, str] = PrefixCache(1000)
    kept.keep("k", Prefix(SharedPrefix([b"a", b"b"]), "ab", 10))
    found = kept.find("k", SharedPrefix([b"a", b"b", b"c"]))
    assert found is not None
    assert found.made == "ab"


def test_another_beginning_under_the_same_key_is_not_taken_for_it() -> None:
    kept: PrefixCache[bytes, str] = PrefixCache(1000)
    kept.keep("k", Prefix(SharedPrefix([b"a", b"b"]), "ab", 10))
    for other in ([b"a"], [b"a", b"x", b"c"], []):
        assert kept.find("k", SharedPrefix(other)) is None
    assert kept.find("other", SharedPrefix([b"a", b"b"])) is None


def test_what_is_held_is_bounded_and_the_longest_unused_goes_first() -> None:
    kept: PrefixCache[bytes, str] = PrefixCache(100)
    for name in "abcd":
        kept.keep(name, Prefix(SharedPrefix([b"x"]), name, 25))
    assert kept.find("a", SharedPrefix([b"x"])) is not None
    kept.keep("e", Prefix(SharedPrefix([b"x"]), "e", 25))
    assert kept.find("b", SharedPrefix([b"x"])) is None
    assert kept.find("a", SharedPrefix([b"x"])) is not None
    assert kept.held_bytes == 100


def test_what_would_push_out_all_others_is_not_kept() -> None:
    kept: PrefixCache[bytes, str] = PrefixCache(100)
    kept.keep("a", Prefix(SharedPrefix([b"x"]), "a", 26))
    assert kept.find("a", SharedPrefix([b"x"])) is None
    assert kept.held_bytes == 0


def test_a_prefix_stays_unchanged_when_it_grows() -> None:
    first = SharedPrefix([b"a"])
    second = first.grown([b"b", b"c"])
    third = second.grown([b"d"])
    assert [[*one] for one in (first, second, third)] == [
        [b"a"],
        [b"a", b"b", b"c"],
        [b"a", b"b", b"c", b"d"],
    ]
    assert second[-1] == b"c"
    assert second[1:] == [b"b", b"c"]
    assert len(third.upto(2)) == 2


def test_strands_that_go_on_from_one_place_do_not_see_each_other() -> None:
    root = SharedPrefix([b"a"])
    left, right = root.grown([b"l"]), root.grown([b"r"])
    assert [[*one] for one in (left, right, root)] == [[b"a", b"l"], [b"a", b"r"], [b"a"]]
    assert left != right
    assert left == SharedPrefix([b"a", b"l"])
    assert left != "al"


def test_a_strand_that_went_on_is_known_by_its_beginning_and_so_is_one_of_equal_items() -> None:
    kept: PrefixCache[bytes, str] = PrefixCache(1000)
    first = SharedPrefix([b"a", b"b"])
    kept.keep("k", Prefix(first, "ab", 10))
    assert kept.find("k", first.grown([b"c"])) is not None
    assert kept.find("k", SharedPrefix([b"a", b"b", b"c"])) is not None
    assert kept.find("k", first.upto(1)) is None
    assert kept.find("k", first.upto(1).grown([b"x"])) is None
