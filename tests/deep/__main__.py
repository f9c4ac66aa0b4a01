"""``python -m tests.deep NAME NUMBER`` repeats a case; ``NAME FIRST-LAST`` runs many."""

from __future__ import annotations

import sys

from tests.deep.attack import a_folder, attack, prepared
from tests.deep.readers import READERS


def main() -> None:
    """Repeat one case with its traceback, or run many and report."""
    name, numbers = sys.argv[1:]
    if "-" in numbers:
        first, last = map(int, numbers.split("-"))
        outcome = attack(name, range(first, last))
        print(*outcome.wrong, outcome, sep="\n")
        return
    with a_folder() as folder:
        path = prepared(READERS[name], folder)
        data = READERS[name].case(name, int(numbers))
        print(f"{len(data):,} bytes: {data[:2000]!r}")
        path.write_bytes(data)
        print("read:", READERS[name].read(path))


if __name__ == "__main__":
    main()
