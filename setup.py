"""Compiles the modules that have a .pxd file; everything else is in pyproject.toml.

The modules also work uncompiled, but slower, so a missing compiler does not fail the installation.
An editable install does not compile them, because compiled modules would hide later edits; `make
compile` compiles them in place. `KAVKA_COMPILE=0` or `1` overrides this.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

SOURCE = Path("src")
DIRECTIVES = {"language_level": 3, "annotation_typing": False, "boundscheck": False, "wraparound": False}


def is_enabled() -> bool:
    choice = os.environ.get("KAVKA_COMPILE")
    if choice is not None:
        return choice not in ("", "0", "false", "no")
    return "editable_wheel" not in sys.argv


def extensions() -> list[Extension]:
    if not is_enabled():
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    modules = [
        Extension(
            ".".join(types.relative_to(SOURCE).with_suffix("").parts),
            [str(types.with_suffix(".py"))],
            depends=[str(types)],
            extra_compile_args=[] if sys.platform == "win32" else ["-O2", "-g0"],
            # Ignore a missing compiler and compiler errors.
            optional=True,
        )
        for types in sorted(SOURCE.rglob("*.pxd"))
    ]
    try:
        return list(cythonize(modules, compiler_directives=DIRECTIVES, build_dir="build/cython", quiet=True))
    except Exception as error:
        print(f"modules are not compiled: {error}", file=sys.stderr)
        return []


setup(ext_modules=extensions())
