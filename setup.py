"""Compiles the modules that have a .pxd file, and declares the commands; everything else is in
pyproject.toml.

The modules also work uncompiled, but slower. With a C compiler and Python's headers a build makes a
wheel for this Python and system, else a pure wheel (py3-none-any): a missing compiler does not fail
the installation. An editable install does not compile, because compiled modules would hide later
edits; `make compile` compiles them in place. `KAVKA_COMPILE=0` makes a pure wheel; with
`KAVKA_COMPILE=1` a build without a compiler fails.
"""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup

SOURCE = Path("src")
DIRECTIVES = {"language_level": 3, "annotation_typing": False, "boundscheck": False, "wraparound": False}

CHOICE = os.environ.get("KAVKA_COMPILE")
IS_REQUIRED = CHOICE not in (None, "", "0", "false", "no")


def is_enabled() -> bool:
    if CHOICE is not None:
        return IS_REQUIRED
    return "editable_wheel" not in sys.argv and has_compiler()


def has_compiler() -> bool:
    """Whether a module can be compiled. A wheel without compiled modules must not have the name of
    one with them, so this is checked before setuptools chooses the name."""
    from distutils.ccompiler import new_compiler
    from distutils.sysconfig import customize_compiler, get_python_inc

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "probe.c"
        file.write_text("#include <Python.h>\n")
        try:
            compiler = new_compiler()
            customize_compiler(compiler)
            compiler.compile([str(file)], output_dir=folder, include_dirs=[get_python_inc()])
        except Exception as error:
            print(f"modules are not compiled: {error}", file=sys.stderr)
            return False
    return True


def entry_points() -> dict[str, list[str]]:
    commands = runpy.run_path(str(SOURCE / "kavka" / "cli" / "catalogue.py"))["commands"]()
    scripts = ["kavka = kavka.cli.main:main"]
    scripts += [f"{name} = kavka.cli.main:script_main" for name in commands]
    return {"console_scripts": scripts, "pytest11": ["kavka = kavka.testing"]}


def extensions() -> list[Extension]:
    if not is_enabled():
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        if IS_REQUIRED:
            raise
        return []
    modules = [
        Extension(
            ".".join(types.relative_to(SOURCE).with_suffix("").parts),
            [str(types.with_suffix(".py"))],
            depends=[str(types)],
            extra_compile_args=[] if sys.platform == "win32" else ["-O2", "-g0"],
            # Ignore errors of the compiler.
            optional=not IS_REQUIRED,
        )
        for types in sorted(SOURCE.rglob("*.pxd"))
    ]
    try:
        return list(cythonize(modules, compiler_directives=DIRECTIVES, build_dir="build/cython", quiet=True))
    except Exception as error:
        if IS_REQUIRED:
            raise
        print(f"modules are not compiled: {error}", file=sys.stderr)
        return []


setup(ext_modules=extensions(), entry_points=entry_points())
