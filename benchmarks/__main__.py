"""Run every benchmark and print its table."""

from benchmarks import import_time, simulator, store


def main() -> None:
    """Run what there is, one after the other."""
    import_time.main()
    simulator.main()
    store.main()


if __name__ == "__main__":
    main()
