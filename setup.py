"""Compiles the modules that have a .pxd with C types beside them; all else is in pyproject.toml.

They are plain Python and work uncompiled, only slower: so where there is no compiler the install goes on without. An
editable install leaves them plain, since what is edited would be older in its compiled form; `make compile` compiles
them in place. `KAVKA_COMPILE=0` or `1` decides otherwise.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

SOURCE = Path("src")
DIRECTIVES = {"language_level": 3, "annotation_typing": False, "boundscheck": False, "wraparound": False}


def wanted() -> bool:
    choice = os.environ.get("KAVKA_COMPILE")
    if choice is not None:
        return choice not in ("", "0", "false", "no")
    return "editable_wheel" not in sys.argv


def extensions() -> list[Extension]:
    if not wanted():
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    found = [
        Extension(
            ".".join(types.relative_to(SOURCE).with_suffix("").parts),
            [str(types.with_suffix(".py"))],
            depends=[str(types)],
            extra_compile_args=[] if sys.platform == "win32" else ["-O2", "-g0"],
            # A compiler that is missing or fails is no reason not to install.
            optional=True,
        )
        for types in sorted(SOURCE.rglob("*.pxd"))
    ]
    try:
        return list(cythonize(found, compiler_directives=DIRECTIVES, build_dir="build/cython", quiet=True))
    except Exception as error:
        print(f"not compiled: {error}", file=sys.stderr)
        return []


setup(ext_modules=extensions())
