"""An S3 server: S3Proxy over HTTP, with its objects in a folder, so that it can be restarted."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

from tests.support import jars
from tests.support.processes import ManagedProcess, free_port, wait_until

BUCKET = "kavka"
_KEY, _SECRET = "test-key", "test-secret"


class S3:
    def __init__(self, folder: Path) -> None:
        self._folder, self.port = folder, free_port()
        (folder / "objects" / BUCKET).mkdir(parents=True)
        self._config = folder / "s3proxy.conf"
        self._config.write_text(
            f"s3proxy.endpoint=http://127.0.0.1:{self.port}\ns3proxy.authorization=aws-v2-or-v4\n"
            f"s3proxy.identity={_KEY}\ns3proxy.credential={_SECRET}\ns3proxy.ignore-unknown-headers=true\n"
            f"jclouds.provider=filesystem-nio2\njclouds.filesystem.basedir={folder}/objects\n"
            "jclouds.identity=unused\njclouds.credential=unused\n"
        )
        self._process: ManagedProcess | None = None
        self.start()

    def start(self) -> None:
        self._process = process = ManagedProcess(
            [jars.java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
             "-DLOG_LEVEL=warn", "-cp", jars.class_path("s3proxy-3.3.0"), "org.gaul.s3proxy.Main",
             "--properties", str(self._config)],
            log=self._folder / "s3proxy.log",
        )  # fmt: skip

        def responds() -> bool:
            if not process.running():
                return True
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=5).close()
            except urllib.error.HTTPError:
                # The request has no signature.
                return True
            except OSError:
                return False
            return True

        wait_until(responds, timeout=60, what="S3Proxy", interval=0.1)
        assert process.running(), process.log_tail()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()

    @property
    def root(self) -> str:
        return f"s3a://{BUCKET}"

    def settings(self) -> dict[str, str]:
        """The settings of Spark for this server."""
        return {
            "spark.hadoop.fs.s3a.endpoint": f"http://127.0.0.1:{self.port}",
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.access.key": _KEY,
            "spark.hadoop.fs.s3a.secret.key": _SECRET,
            "spark.hadoop.fs.s3a.path.style.access": "true",
        }

    def names(self) -> list[str]:
        """The names of all objects."""
        root = self._folder / "objects" / BUCKET
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())

    def __enter__(self) -> S3:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()


def client_jars() -> str:
    """The jars of Hadoop's S3 client, for `spark.jars`."""
    return jars.class_path("hadoop-aws-3.5.0").replace(":", ",")
