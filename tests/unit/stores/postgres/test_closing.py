"""What a store on PostgreSQL leaves behind when it is closed."""

from holdfast.stores.postgres import open_postgres
from holdfast.stores.postgres.driver import PostgresDriver
from holdfast.testing.clock import ManualClock


async def test_a_writer_that_comes_back_after_the_store_is_closed_is_dropped(
    postgres_url: str,
) -> None:
    store = await open_postgres(postgres_url, clock=ManualClock())
    driver = store._driver
    assert isinstance(driver, PostgresDriver)
    connection = await driver._acquire_writer()
    await store.close()
    assert not connection.is_closed()
    driver._return_writer(connection)
    assert connection.is_closed()
