"""Command-line options as all tools take them."""

from __future__ import annotations

import argparse
from typing import NoReturn


class ArgumentParser(argparse.ArgumentParser):
    """A wrong option is one line on standard error and exit code 1, as every other error of a tool."""

    def error(self, message: str) -> NoReturn:
        self.exit(1, f"{self.prog}: {message} (--help shows the options)\n")
