"""URLs of PostgreSQL databases, as people write them."""

import pytest

from holdfast.core.errors import InvalidSetting
from holdfast.stores.postgres.dsn import read_target


def test_a_url_with_a_driver_name_is_the_same_database() -> None:
    assert read_target("postgresql+asyncpg://u@h/d").dsn == "postgresql://u@h/d"
    assert read_target("postgres://u@h/d").dsn == "postgresql://u@h/d"


def test_several_hosts_may_be_given_one_by_one() -> None:
    dsn = read_target("postgresql://u@/d?host=a:1&host=b:2").dsn
    assert dsn == "postgresql://u@/d?host=a%3A1%2Cb%3A2&target_session_attrs=primary"


def test_several_hosts_mean_the_primary_among_them_unless_the_url_says_otherwise() -> None:
    assert read_target("postgresql://h/d").dsn == "postgresql://h/d"
    assert read_target("postgresql://a,b/d").dsn.endswith("?target_session_attrs=primary")
    chosen = "postgresql://a,b/d?target_session_attrs=any"
    assert read_target(chosen).dsn == chosen
    assert [
        name
        for name in ("any", "primary", "read-write", "prefer-standby", "standby", "read-only")
        if read_target(f"postgresql://a,b/d?target_session_attrs={name}").prefers_standby
    ] == ["prefer-standby", "standby", "read-only"]


def test_what_only_libpq_understands_is_left_out() -> None:
    target = read_target("postgresql://h/d?keepalives=1&connect_timeout=7&sslmode=require")
    assert target.dsn == "postgresql://h/d?sslmode=require"
    assert target.connect_seconds == 7


def test_settings_of_the_server_are_apart_from_the_options_of_the_connection() -> None:
    target = read_target("postgresql://h/d?sslmode=require&application_name=x&jit=on")
    assert target.dsn == "postgresql://h/d?sslmode=require"
    assert target.settings == {"application_name": "x", "jit": "on"}


def test_an_asynchronous_commit_has_to_be_allowed_explicitly() -> None:
    assert not read_target("postgresql://h/d").allows_async_commit
    assert read_target("postgresql://h/d?holdfast_allow_async_commit=true").allows_async_commit
    assert not read_target("postgresql://h/d?holdfast_allow_async_commit=no").allows_async_commit
    with pytest.raises(InvalidSetting, match="must be true or false"):
        read_target("postgresql://h/d?holdfast_allow_async_commit=maybe")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hunter2@h/d",
        "postgresql://me@h/d?password=hunter2",
        "postgresql://me:hunter2@[::1]:5432,h:5433/d",
    ],
)
def test_a_secret_is_not_shown(url: str) -> None:
    target = read_target(url)
    assert "hunter2" in target.dsn
    assert "hunter2" not in target.shown
    assert "hunter2" not in repr(target)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hunter2@[h/d", "postgresql://me:hunter2@h/d?nothing",
        "postgresql://me:hunter2@h:port/d", "postgresql://me:hunter2/more@h/d",
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_read_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        read_target(url)
    assert "hunter2" not in str(refused.value)
