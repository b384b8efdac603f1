"""``python -m benchmarks [table ...] [--quick] [--out FILE]``."""

import argparse
import json
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.timing import ROOT, machine

TABLES = ["speed", "resampling", "clustered", "first-call", "memory", "accuracy", "seeding"]


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and write everything to a file; 1 if a table could not be measured."""
    options = _parser().parse_args(arguments)
    here = machine()
    print("\n".join(f"{name:>14}: {value}" for name, value in here.items()), flush=True)
    found, failures = {}, 0
    for name in options.tables or TABLES:
        print(f"{name} ...", file=sys.stderr, flush=True)
        start = time.perf_counter()
        try:
            report = import_module(f"benchmarks.{name.replace('-', '_')}").run(options.quick)
        except Exception:
            traceback.print_exc()
            print(f"\n{name}: failed, see the error output", flush=True)
            failures += 1
            continue
        seconds = time.perf_counter() - start
        print(f"\n{report.text()}\n\n({name} took {seconds:.0f} s)", flush=True)
        found[name] = report.as_json() | {"seconds": seconds}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"machine": here, "tables": found}, default=_plain))
    print(f"\nAll measured values: {options.out}")
    return min(failures, 1)


def _plain(value: Any) -> Any:
    """Numbers of NumPy as Python's own, and other things as what they hold."""
    return value.item() if hasattr(value, "item") else vars(value)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="table", help=f"of {', '.join(TABLES)}")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repetitions")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "benchmarks.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
