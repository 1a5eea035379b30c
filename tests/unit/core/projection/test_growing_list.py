"""Lists that grow, prefixes of them, and forms that belong to their beginnings."""

from operator import eq, ne

from holdfast.core.projection.growing_list import MAX_FORMS, Form, GrowingList, share


def test_a_prefix_stays_unchanged_when_it_grows() -> None:
    first = share([b"a"])
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
    root = share([b"a"])
    left, right = root.grown([b"l"]), root.grown([b"r"])
    assert [[*one] for one in (left, right, root)] == [[b"a", b"l"], [b"a", b"r"], [b"a"]]
    assert left != right
    assert left == share([b"a", b"l"])
    assert left != "al"


def test_strands_that_go_on_alike_share_their_list() -> None:
    root = share([b"a"])
    longer = root.grown([b"b", b"c"])
    for new in ([b"b"], [b"b", b"c"], [b"b", b"c", b"d"], []):
        again = root.grown(new)
        assert [*again] == [b"a", *new]
        assert again.shared is longer.shared


def test_a_prefix_is_indexed_without_a_copy() -> None:
    prefix = share(list(range(1000))).upto(500)
    assert (prefix[0], prefix[-1], prefix[499]) == (0, 499, 499)
    assert prefix[490:] == list(range(490, 500))
    assert prefix[::-100] == [499, 399, 299, 199, 99]
    for place in (500, -501):
        try:
            prefix[place]
        except IndexError:
            continue
        raise AssertionError(f"{place} is outside")


def test_a_form_is_found_for_the_beginning_that_it_was_computed_from_and_longer_ones() -> None:
    items = GrowingList("abc")
    form = Form("k", 2)
    items.keep_form(form)
    assert items.find_form("k", 2) is form
    assert items.find_form("k", 3) is form
    assert items.find_form("k", 1) is None
    assert items.find_form("other", 3) is None


def test_a_list_holds_one_form_of_a_key_and_few_of_them() -> None:
    items = GrowingList("abc")
    for number in range(5):
        items.keep_form(Form(number % 4, number % 3))
    assert [form.key for form in items.forms] == [0, 3]
    assert len(items.forms) == MAX_FORMS


def test_another_list_has_copies_of_the_forms_of_the_beginning_that_it_shares() -> None:
    items = GrowingList("abcd")
    items.keep_form(Form("long", 3))
    items.keep_form(Form("short", 1))
    for other in (items.without(2, 3), items.upto(2), share(items).upto(2).grown(["x"]).shared):
        assert [(form.key, form.length) for form in other.forms] == [("short", 1)]
        assert other.forms[0] is not items.forms[0]
    assert items.without(2, 3) == ["a", "b", "d"]
    assert [form.key for form in items.forms] == ["short", "long"]


def test_prefixes_and_lists_are_compared_by_their_items() -> None:
    prefix = share([1, 2, 3]).upto(2)
    for same in ([1, 2], share([1, 2])):
        assert eq(prefix, same)
        assert eq(same, prefix)
        assert not ne(prefix, same)
        assert not ne(same, prefix)
    for other in ([1], [1, 3], share([1, 2, 3]), 12):
        assert ne(prefix, other)
        assert ne(other, prefix)
        assert not eq(prefix, other)
