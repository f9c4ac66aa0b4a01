"""Record the ends anew: `python -m tests.golden [PART OF A NAME]`.

Only if a change is *meant* to change the end of a run (a wrong scheme, rule or default), in the
commit that makes it, and only for the cases that it names; or for all of them without a change of
the code, with a new PyTorch. Never because a test fails. The processor must be an x86-64 one, and
its model does not matter (see `tests.support.portable`).
"""

from __future__ import annotations

import json
import sys

from tests.golden.cases import CASES
from tests.golden.portable import take_portably
from tests.golden.take import FILE
from tests.support.portable import machine


def main(part: str = "") -> None:
    kept = json.loads(FILE.read_text()) if FILE.exists() else {"machine": machine(), "ends": {}}
    if part and kept["machine"] != machine():
        sys.exit(f"these are of {kept['machine']}: take all of them anew")
    ends = take_portably(name for name in CASES if part in name)
    known = {name: kept["ends"][name] for name in CASES if name in kept["ends"]}
    both = known | ends
    ordered = {name: both[name] for name in CASES if name in both}
    lines = ",\n".join(f"  {json.dumps(n)}: {json.dumps(e)}" for n, e in ordered.items())
    head = json.dumps(machine())
    FILE.write_text(f'{{"machine": {head},\n "ends": {{\n{lines}\n}}}}\n')
    changed = [name for name, found in ends.items() if known.get(name) != found]
    print(f"{len(ends)} taken, {len(changed)} changed or new", *changed, sep="\n  ")


if __name__ == "__main__":
    main(*sys.argv[1:2])
