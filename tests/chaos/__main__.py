"""Run rounds of faults against a cluster of three brokers. `make chaos` runs this module.

python -m tests.chaos --list
python -m tests.chaos --faults kill,pause-leader --rounds 20
python -m tests.chaos --faults all --duration 3600 --apache
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from collections import Counter
from pathlib import Path

from tests.chaos.cluster import can_mount
from tests.chaos.faults import every_fault, faults_by_name
from tests.chaos.run import run


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description="Inject faults under load, and check the records."
    )
    parser.add_argument("--faults", default="all", help="names separated by commas, see --list (default: all)")
    parser.add_argument(
        "--rounds", type=int, default=0, help="rounds of each fault (default: 1, or no limit with --duration)"
    )
    parser.add_argument("--duration", type=float, default=0, help="seconds after which no new round starts")
    parser.add_argument("--seed", type=int, help="repeats the random choices of an earlier run")
    parser.add_argument("--apache", action="store_true", help="run against Apache Kafka 3.9, to check the harness")
    parser.add_argument("--folder", type=Path, help="folder for the files of the cluster (default: a temporary folder)")
    parser.add_argument("--keep", action="store_true", help="keep the files, even if every check passes")
    parser.add_argument("--list", action="store_true", help="print the names of the faults")
    arguments = parser.parse_args(argv)
    if arguments.list:
        print("\n".join(every_fault()))
        return 0
    try:
        faults = faults_by_name(arguments.faults)
    except ValueError as error:
        parser.error(str(error))
    if any(fault.kind.small_disks for fault in faults) and not can_mount():
        print("NOT RUN: disk-full needs root to mount a small disk", file=sys.stderr)
        faults = [fault for fault in faults if not fault.kind.small_disks]
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    seed = random.randrange(1 << 32) if arguments.seed is None else arguments.seed
    outcomes = run(
        faults,
        rounds=arguments.rounds or (1_000_000 if arguments.duration else 1),
        duration=arguments.duration,
        apache=arguments.apache,
        seed=seed,
        folder=arguments.folder,
        keep=arguments.keep,
        say=lambda text: print(text, flush=True),
    )
    passed = Counter(outcome.fault for outcome in outcomes if not outcome.violations)
    failed = Counter(outcome.fault for outcome in outcomes if outcome.violations)
    print(f"seed {seed}: {passed.total()} rounds without violations, {failed.total()} with violations")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
