"""Build the documentation site in build/site, and fail on a warning.

    python tools/build_site.py

The diagrams need Mermaid. npm fetches it once; its copy in the site is used instead of a CDN, so
that the site needs no other server. Without npm, browsers load Mermaid from a CDN.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "build" / "site"
# The builder deletes the folder .cache beside its configuration, so it works on a copy.
SOURCE = ROOT / "build" / "site-source"
MERMAID = "12.3.0"
SHA256 = "336df803d87a38b70a01e736e666c8f7601d2ce42f5e47c8fafe5d721074b9a3"
CACHED = ROOT / ".cache" / f"mermaid-{MERMAID}.min.js"


def mermaid() -> Path | None:
    """Return the file with Mermaid, or None without npm. Raise SystemExit if it is altered."""
    npm = shutil.which("npm")
    if not CACHED.exists():
        if npm is None:
            return None
        folder = CACHED.parent / "mermaid"
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([npm, "pack", "--silent", f"mermaid@{MERMAID}"], cwd=folder, check=True, stdout=subprocess.PIPE)
        with tarfile.open(folder / f"mermaid-{MERMAID}.tgz") as archive:
            member = archive.extractfile("package/dist/mermaid.min.js")
            assert member is not None
            CACHED.write_bytes(member.read())
        shutil.rmtree(folder)
    if hashlib.sha256(CACHED.read_bytes()).hexdigest() != SHA256:
        CACHED.unlink()
        raise SystemExit(f"mermaid {MERMAID} does not have the expected checksum")
    return CACHED


def main() -> int:
    script = mermaid()
    for folder in (SOURCE, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "tools" / "site", SOURCE)
    shutil.copytree(ROOT / "docs", SOURCE / "docs")
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict", "--clean"]
    if result := subprocess.run(command, cwd=SOURCE, check=False).returncode:
        return result
    (SOURCE / "site").rename(SITE)
    if script is None:
        print("npm is not installed: browsers load Mermaid, which draws the diagrams, from a CDN")
    else:
        shutil.copy(script, SITE / "assets" / "mermaid.min.js")
    print(f"The site is at {SITE / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
