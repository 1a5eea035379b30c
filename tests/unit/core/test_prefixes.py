"""Beginnings of lists, found by what they hold."""

from holdfast.core.prefixes import Prefix, Prefixes


def test_a_longer_list_is_known_by_its_beginning() -> None:
    kept: Prefixes[bytes, str] = Prefixes(1000)
    kept.keep("k", Prefix([b"a", b"b"], "ab", 10))
    found = kept.find("k", [b"a", b"b", b"c"])
    assert found is not None
    assert found.made == "ab"


def test_another_beginning_under_the_same_key_is_not_taken_for_it() -> None:
    kept: Prefixes[bytes, str] = Prefixes(1000)
    kept.keep("k", Prefix([b"a", b"b"], "ab", 10))
    for other in ([b"a"], [b"a", b"x", b"c"], []):
        assert kept.find("k", other) is None
    assert kept.find("other", [b"a", b"b"]) is None


def test_what_is_held_is_bounded_and_the_longest_unused_goes_first() -> None:
    kept: Prefixes[bytes, str] = Prefixes(100)
    for name in "abcd":
        kept.keep(name, Prefix([b"x"], name, 25))
    assert kept.find("a", [b"x"]) is not None
    kept.keep("e", Prefix([b"x"], "e", 25))
    assert kept.find("b", [b"x"]) is None
    assert kept.find("a", [b"x"]) is not None
    assert kept.held_bytes == 100


def test_what_would_push_out_all_others_is_not_kept() -> None:
    kept: Prefixes[bytes, str] = Prefixes(100)
    kept.keep("a", Prefix([b"x"], "a", 26))
    assert kept.find("a", [b"x"]) is None
    assert kept.held_bytes == 0
