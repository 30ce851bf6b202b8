from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.engine import MAX_INPUT, Finding, Target, fuzz, run_input

if "--coverage" in sys.argv:
    import atheris

    with atheris.instrument_imports(include=["kavka"]):
        from tests.fuzz.targets import TARGETS
else:
    from tests.fuzz.targets import TARGETS


def main() -> int:
    options = _options()
    logging.disable()  # Decoders log repairs.
    targets = [TARGETS[name] for name in options.targets or TARGETS]
    if options.replay is not None:
        return _replay(targets[0], options.replay)
    if options.coverage:
        return _with_coverage(targets, options.seconds or 60.0)
    total, failed = 0, 0
    for target in targets:
        seconds = None if options.seconds is None else options.seconds / len(targets)
        inputs = options.inputs if options.inputs is not None or seconds is not None else target.inputs
        started = time.process_time()
        try:
            count = fuzz(target, options.seed, inputs, seconds)
        except Finding as finding:
            failed += 1
            path = finding.save(Path(tempfile.gettempdir()))
            print(f"{finding}\n  input: {path}\n  again: python -m tests.fuzz {target.name} --replay {path}")
        else:
            total += count
            print(f"{target.name}: {count} inputs, {time.process_time() - started:.1f} s of CPU time", flush=True)
    print(f"{total} inputs, {failed} findings (seed {options.seed})")
    return 1 if failed else 0


def _with_coverage(targets: list[Target], seconds: float) -> int:
    """Run each target with Atheris, which saves its findings. Each target has a separate process,
    because Atheris ends the process."""
    if len(targets) > 1:
        commands = [[sys.executable, "-m", "tests.fuzz", target.name, "--coverage"] for target in targets]
        share = ["--seconds", str(seconds / len(targets))]
        return max(subprocess.run([*command, *share], check=False).returncode for command in commands)
    (target,) = targets
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate([*target.corpus, *target.seeds()]):
            Path(folder, str(number)).write_bytes(seed)
        prefix = Path(tempfile.gettempdir(), f"{target.name}-")
        flags = [
            f"-max_total_time={seconds:.0f}",
            f"-max_len={MAX_INPUT}",
            f"-artifact_prefix={prefix}",
            "-verbosity=0",
        ]
        atheris.Setup([sys.argv[0], *flags, folder], lambda data: run_input(target, data))
        atheris.Fuzz()
    return 0


def _replay(target: Target, path: Path) -> int:
    try:
        run_input(target, path.read_bytes())
    except Finding as finding:
        print(finding)
        return 1
    print("no finding")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=sys.modules["tests.fuzz"].__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], metavar="TARGET", help=", ".join(TARGETS))
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument("--inputs", type=int, help="inputs per target")
    limit.add_argument("--seconds", type=float, help="time for all targets together")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the same seed gives the same inputs")
    parser.add_argument("--coverage", action="store_true", help="let atheris choose the inputs, by code coverage")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run one input of one target")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
