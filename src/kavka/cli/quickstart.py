"""`kavka quickstart`: Kavka in one terminal, step by step.

Every step prints the command that it runs, so that the user can repeat it. All data is in a
temporary folder, which is deleted at the end. The broker and the console end with this process. The
servers of the cluster step are daemons: the step stops them, and a killed quickstart leaves them,
so the step names the command that stops them.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from kavka.cli.options import Arguments, Command, Option
from kavka.cli.output import at_terminal, style
from kavka.cli.quickstart_words import show_counts
from kavka.cli.server import command_name
from kavka.cli.tool import ToolError, run
from kavka.runtimes import MissingRuntime, check_spark, find_java, java_version, pyspark_version
from kavka.testing import Broker, BrokerFailed

TOPIC = "greetings"
WORD_COUNT = Path(__file__).with_name("examples") / "word_count.py"
COMMAND_TIMEOUT_S = 120.0
JOB_STOP_TIMEOUT_S = 60.0
CONSOLE_TIMEOUT_S = 30.0
DEFAULT_PORT = 9092
SECONDS_WITHOUT_TERMINAL = 30.0


class Step(NamedTuple):
    name: str
    title: str
    run: Callable[[Session], None]
    missing: Callable[[], str | None]
    """Returns what this machine lacks for the step, with the remedy; None if nothing."""


class Session:
    """The folder and the processes of a quickstart. `stack` closes them."""

    def __init__(self, stack: ExitStack, folder: Path, seconds: float | None) -> None:
        self.folder = folder
        self.seconds = seconds
        self._stack = stack
        self._broker: Broker | None = None

    @property
    def servers(self) -> str:
        """The address of the broker, which the first use starts."""
        if self._broker is None:
            port = DEFAULT_PORT if _is_free(DEFAULT_PORT) else 0
            listener = f"PLAINTEXT://127.0.0.1:{port}"
            print(_prompt("server", "--override", f"listeners={listener}", "--override", "log.dirs=data"))
            try:
                self._broker = self._stack.enter_context(Broker(listeners=listener, log_dir=self.folder / "data"))
            except BrokerFailed as error:
                raise ToolError(str(error)) from None
        return self._broker.bootstrap_servers

    def kavka(self, *arguments: str, stdin: str = "", may_fail: bool = False) -> None:
        """Print and run a command of Kavka. Raise ToolError if it fails, unless it may."""
        echo = f"echo {shlex.quote(stdin.rstrip())} | " if stdin else ""
        print(_prompt(*arguments, before=echo), flush=True)
        try:
            result = subprocess.run(
                _argv(*arguments), cwd=self.folder, env=self.environment, input=stdin, text=True,
                timeout=COMMAND_TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ToolError(f"{arguments[0]} did not end within {COMMAND_TIMEOUT_S:g} s") from None
        if result.returncode and not may_fail:
            raise ToolError(f"{arguments[0]} failed; kavka doctor checks this machine")

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "KAVKA_PIPELINE_DIR": str(self.folder / "jobs")}

    def start(self, *arguments: str, output: Path) -> subprocess.Popen[str]:
        """Print and start a command whose output goes to a file. It is stopped at the end."""
        print(_prompt(*arguments), flush=True)
        with output.open("wb") as file:
            process = subprocess.Popen(
                _argv(*arguments), cwd=self.folder, env=self.environment, text=True,
                stdin=subprocess.PIPE, stdout=file, stderr=file,
            )  # fmt: skip
        self._stack.callback(_end, process)
        return process


def _argv(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "kavka.cli.main", *arguments]


def _prompt(*arguments: str, before: str = "") -> str:
    return style(f"$ {before}{command_name()} {shlex.join(arguments)}", "bold")


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
    process.communicate()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run_broker(session: Session) -> None:
    print(f"The broker is ready. Any Kafka client can use it at {session.servers}.")


def _run_records(session: Session) -> None:
    server = ("--bootstrap-server", session.servers)
    session.kavka("topics", *server, "--create", "--if-not-exists", "--topic", TOPIC)
    session.kavka("console-producer", *server, "--topic", TOPIC, stdin="hello\n")
    session.kavka(
        "console-consumer", *server, "--topic", TOPIC, "--from-beginning", "--max-messages", "1",
        "--timeout-ms", "20000",
    )  # fmt: skip


def _run_console(session: Session) -> None:
    output = session.folder / "console.log"
    console = session.start(
        "console", "--bootstrap-server", session.servers, "--port", str(_free_port()), "--stop-on-eof", output=output
    )
    deadline = time.monotonic() + CONSOLE_TIMEOUT_S
    while "The console is at" not in (text := output.read_text()):
        if console.poll() is not None or time.monotonic() > deadline:
            raise ToolError(f"the console did not start: {(text.strip().splitlines() or ['no output'])[-1]}")
        time.sleep(0.05)
    print(f"{text.strip().splitlines()[-1]}. Open it in a browser; it shows the topic {TOPIC}.")


def _run_cluster(session: Session) -> None:
    # Three brokers use consecutive ports.
    first = next(port for port in range(19092, 65000, 10) if all(_is_free(port + i) for i in range(3)))
    directory = ("--dir", "cluster")
    server = ("--bootstrap-server", f"localhost:{first}")
    print(f"If this is interrupted: {command_name()} cluster down --dir {session.folder / 'cluster'}")
    try:
        session.kavka("cluster", "up", *directory, "--brokers", "3", "--port", str(first), "--zookeeper-port",
                      str(_free_port()))  # fmt: skip
        session.kavka(
            "topics", *server, "--create", "--topic", "payments", "--partitions", "3", "--replication-factor", "3"
        )
        session.kavka("console-producer", *server, "--topic", "payments", stdin="before the failure\n")
        session.kavka("cluster", "kill", "2", *directory)
        session.kavka("console-producer", *server, "--topic", "payments", stdin="after the failure\n")
        session.kavka(
            "console-consumer", *server, "--topic", "payments", "--from-beginning", "--max-messages", "2",
            "--timeout-ms", "60000",
        )  # fmt: skip
    finally:
        if (session.folder / "cluster").exists():
            session.kavka("cluster", "down", *directory)


def _run_words(session: Session) -> None:
    servers = session.servers
    job_file = session.folder / "word_count.py"
    job_file.write_bytes(WORD_COUNT.read_bytes())
    output = session.folder / "word_count.log"
    print("The job counts words with Kafka Streams on Spark. Its start takes some seconds; Ctrl-C stops it.")
    job = session.start(
        "pipeline", "run", job_file.name, "--bootstrap-server", servers, "--config", "state.dir=state", output=output
    )
    try:
        show_counts(servers, session.seconds, job)
        session.kavka("pipeline", "status")
    except KeyboardInterrupt:
        print()
    finally:
        if job.poll() is None:
            # After Ctrl-C the job may have ended by itself.
            session.kavka("pipeline", "stop", may_fail=True)
    try:
        job.wait(JOB_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ToolError(f"the job did not stop within {JOB_STOP_TIMEOUT_S:g} s") from None
    if job.returncode:
        raise ToolError(f"the job failed: {(output.read_text().strip().splitlines() or ['no output'])[-1]}")


def _missing_packages(extra: str, *modules: str) -> str | None:
    missing = [module for module in modules if find_spec(module) is None]
    return f"it needs {', '.join(missing)}: pip install 'kavka[{extra}]'" if missing else None


def _missing_for_cluster() -> str | None:
    try:
        java_version(find_java())
        if not (os.environ.get("ZOOKEEPER_HOME") or os.environ.get("KAVKA_ZOOKEEPER_JARS")):
            pyspark_version()
    except MissingRuntime as error:
        return str(error)
    return _missing_packages("cluster", "kazoo")


def _missing_for_words() -> str | None:
    try:
        check_spark()
    except MissingRuntime as error:
        return str(error)
    return _missing_packages("pipeline", "pyarrow", "lmdb", "pandas")


STEPS = (
    Step("broker", "Start a broker", _run_broker, lambda: None),
    Step("records", "Create a topic, produce and consume a record", _run_records, lambda: None),
    Step("console", "Look at it in the console", _run_console,
         lambda: _missing_packages("console", "starlette", "uvicorn", "jinja2", "python_multipart")),
    Step("cluster", "Run a cluster of three brokers and kill one", _run_cluster, _missing_for_cluster),
    Step("words", "Count words on Spark, live", _run_words, _missing_for_words),
)  # fmt: skip

COMMAND = Command(
    "quickstart",
    "Try Kavka in one terminal: a broker, records, the console, a cluster and a word count on Spark. Each step prints "
    "its commands. On a terminal, Enter starts the next step.",
    (
        Option("step", "Run only this step.", "step", repeated=True, choices=tuple(step.name for step in STEPS)),
        Option("seconds", "Length of the word count after its first counts.", "seconds", float,
               default_text="until Ctrl-C; 30 without a terminal"),
        Option("yes", "Do not wait for Enter between steps."),
    ),
    examples=("kavka quickstart", "kavka quickstart --step words --seconds 60"),
)  # fmt: skip


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, _body)


def _body(args: Arguments) -> int:
    steps = [step for step in STEPS if not args["step"] or step.name in args["step"]]
    is_interactive = at_terminal() and sys.stdin.isatty()
    seconds = args["seconds"]
    if seconds is None and not is_interactive:
        seconds = SECONDS_WITHOUT_TERMINAL
    skipped = 0
    with tempfile.TemporaryDirectory(prefix="kavka-quickstart-") as folder, ExitStack() as stack:
        session = Session(stack, Path(folder), seconds)
        for number, step in enumerate(steps, 1):
            print(f"\n{style(f'Step {number} of {len(steps)}: {step.title}', 'bold', 'cyan')}", flush=True)
            if problem := step.missing():
                print(f"Skipped: {problem}")
                skipped += 1
            else:
                step.run(session)
            if number < len(steps):
                _next(steps[number], wait=is_interactive and not args["yes"])
    print(_end_text(skipped))
    return 0


def _next(step: Step, *, wait: bool) -> None:
    print(f"Next: {step.title[0].lower()}{step.title[1:]}.", flush=True)
    if wait:
        try:
            input("Enter continues, Ctrl-C ends. ")
        except EOFError:
            print()


def _end_text(skipped: int) -> str:
    kavka = command_name()
    lines: Sequence[str] = (
        "",
        "The quickstart's servers are stopped and its data is deleted. To go on:",
        f"  {kavka} server --console         a broker with its data in ./kavka-data, and the console",
        f"  {kavka} config-files --copy .    configuration files to change",
        f"  {kavka} --help                   all tools",
    )
    if skipped:
        lines = (*lines, f"  {kavka} doctor                   what the skipped steps need")
    return "\n".join(lines)
