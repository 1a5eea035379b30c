"""Run every benchmark and print its table."""

from benchmarks import import_time


def main() -> None:
    """Run what there is, one after the other."""
    import_time.main()


if __name__ == "__main__":
    main()
