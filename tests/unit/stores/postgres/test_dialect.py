"""Our statements, for many sets of parameters at once."""

import pytest

from holdfast.stores.postgres.dialect import (
    Parameters,
    Written,
    at_once,
    in_arrays,
    in_dollars,
    read_many,
    table_of,
    together,
    write_many,
)
from holdfast.stores.sql import erasure
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.optimistic import plain_turns
from holdfast.stores.sql.plan import Statement

SETS = "unnest($1::text[], $2::int8[]) as b(p1, p2)"
UPSERT = " on conflict (a) do update set b = excluded.b"
TEXT_INT = Parameters(("text", "int8"))
EVERY_WRITE = [
    one
    for one in [
        *vars(sql).values(),
        *vars(plain_turns).values(),
        *erasure.ERASURES,
        *erasure.ERASURES_BY_ID,
    ]
    if isinstance(one, Statement) and not one.text.startswith("select")
]


def test_parameters_are_numbered_with_dollars() -> None:
    assert in_dollars("a = ?1 and b = ?12") == "a = $1 and b = $12"


def test_a_read_is_joined_with_its_sets_and_numbers_its_answers() -> None:
    assert read_many("select x from t where a = ?1 limit ?2", TEXT_INT) == (
        "select b.n, q.* from unnest($1::text[], $2::int8[]) with ordinality as b(p1, p2, n) "
        "cross join lateral (select x from t where a = b.p1 limit b.p2 offset 0) q"
    )


@pytest.mark.parametrize(
    ("one", "many"),
    [
        (
            "insert into t (a, b) values (?1, ?2)",
            f"insert into t (a, b) select b.p1, b.p2 from {SETS}",
        ),
        (
            f"insert into t (a, b) values (?1, ?2){UPSERT}",
            f"insert into t (a, b) select b.p1, b.p2 from {SETS}{UPSERT}",
        ),
        (
            "update t set a = ?1 where b = ?2",
            f"update t set a = b.p1 from {SETS} where b = b.p2",
        ),
        (
            "delete from t where a = ?1 and b < ?2",
            f"delete from t using {SETS} where a = b.p1 and b < b.p2",
        ),
    ],
)
def test_a_write_takes_its_sets_as_a_table(one: str, many: str) -> None:
    assert write_many(one, TEXT_INT) == many


def test_writes_go_together_each_with_parameters_of_its_own() -> None:
    writes = (
        Written("update t set a = ?1 where b = ?2", ("text", "int8"), is_counted=True),
        Written("insert into u (c) values (?1)", ("bytea",), is_counted=False),
    )
    parts = (
        "with w0 as (update t set a = b.p1 from unnest($1::text[], $2::int8[]) as b(p1, p2) "
        "where b = b.p2 returning 1), "
        "w1 as (insert into u (c) select b.p1 from unnest($3::bytea[]) as b(p1)) "
    )
    assert together(writes) == parts + "select (select count(*) from w0)"
    # What may be null throughout has no length to go by; what rows are found by has.
    whole = "case when (select count(*) from w0) = cardinality($1) then 1 else 0 end"
    assert at_once(writes, "now()") == f"{parts}select 1 / {whole}, now()"


def test_one_set_of_parameters_is_no_table() -> None:
    writes = (
        Written("insert into u (c) values (?1)", ("bytea",), is_counted=False),
        Written("update t set a = ?1 where b = ?2", ("text", "int8"), is_counted=True, is_one=True),
    )
    assert at_once(writes, "now()") == (
        "with w0 as (insert into u (c) select b.p1 from unnest($1::bytea[]) as b(p1)), "
        "w1 as (update t set a = $2 where b = $3 returning 1) "
        "select 1 / case when (select count(*) from w1) = 1 then 1 else 0 end, now()"
    )


@pytest.mark.parametrize(
    "statement", [one for one in EVERY_WRITE if one.is_fenced], ids=lambda one: one.name
)
def test_the_first_parameter_of_a_fenced_write_tells_how_many_there_are(
    statement: Statement,
) -> None:
    """Columns of nulls are sent as empty lists; what rows are found by is never null."""
    assert "?1" in statement.text


@pytest.mark.parametrize("statement", EVERY_WRITE, ids=lambda one: one.name)
def test_every_write_of_ours_can_be_grouped(statement: Statement) -> None:
    types = tuple("text" for _ in range(statement.text.count("?")))
    assert "unnest" in write_many(statement.text, Parameters(types))
    assert table_of(statement.text)


def test_sets_are_turned_into_columns() -> None:
    assert in_arrays([("a", 1), ("b", None)]) == [["a", "b"], [1, None]]


def test_a_column_of_nulls_need_not_be_sent() -> None:
    assert in_arrays([("a", None), ("b", None)]) == [["a", "b"], []]


def test_a_read_is_not_taken_for_a_write() -> None:
    with pytest.raises(ValueError, match="no insert"):
        write_many("select 1", TEXT_INT)
    with pytest.raises(ValueError, match="no insert"):
        table_of("select 1")
