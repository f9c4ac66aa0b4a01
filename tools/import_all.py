"""Import every module of the installed package, and count the missing dependencies.

Any other error means that the module does not work with this Python, and is raised.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections import Counter

import submodel
from submodel.core.errors import SubmodelError

missing: Counter[str] = Counter()
imported = 0
for module in pkgutil.walk_packages(submodel.__path__, "submodel.", onerror=lambda _: None):
    if module.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        missing[(error.name or "").partition(".")[0]] += 1
    except SubmodelError:  # names the extra
        missing["an extra"] += 1
    else:
        imported += 1
missing_text = ", ".join(f"{count} need {name}" for name, count in missing.most_common())
print(f"Python {sys.version.split()[0]}: {imported} modules import; {missing_text}")
sys.exit("submodel" in missing or imported == 0)
