"""Loads the compiled or the plain form of modules that can be compiled, so that tests run on both.

`load("kavka.client.producer._append", COMPILED)` returns a separate module that nothing else
uses. `use(COMPILED)` makes `import` return that form in this process. Call it before the first
import. `KAVKA_FORM=compiled pytest …` selects the form for the tests of the clients."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from pathlib import Path
from types import ModuleType

from tests.support.missing import skip_loudly

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "compiled"
PLAIN, COMPILED = "plain", "compiled"
FORMS = (PLAIN, COMPILED)

# The same directives as in setup.py.
DIRECTIVES = ("language_level=3", "annotation_typing=False", "boundscheck=False", "wraparound=False")


def modules() -> list[str]:
    """Return the modules that have a .pxd file with C types."""
    source = ROOT / "src"
    return sorted(".".join(p.relative_to(source).with_suffix("").parts) for p in source.rglob("*.pxd"))


def _source(name: str) -> Path:
    return (ROOT / "src").joinpath(*name.split(".")).with_suffix(".py")


def build(name: str) -> Path:
    """Return the compiled module, which is cached by the hash of its sources. Skip the test if
    there is no compiler."""
    source = _source(name)
    digest = hashlib.sha256(source.read_bytes() + source.with_suffix(".pxd").read_bytes()).hexdigest()[:16]
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    target = CACHE / digest / f"{source.stem}{suffix}"
    if target.exists():
        return target
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or importlib.util.find_spec("Cython") is None:
        skip_loudly("no compiler, or no Cython, for the compiled form")
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _compile(source, compiler, target)
    return target


def _compile(source: Path, compiler: str, target: Path) -> None:
    c_file = target.parent / f"{os.getpid()}.c"
    library = target.parent / f"{os.getpid()}.so"
    options = [argument for directive in DIRECTIVES for argument in ("-X", directive)]
    cython = [sys.executable, "-m", "cython", *options, "-o", str(c_file), str(source.relative_to(ROOT / "src"))]
    subprocess.run(cython, check=True, cwd=ROOT / "src")
    include = sysconfig.get_paths()["include"]
    subprocess.run([compiler, "-O2", "-fPIC", "-shared", f"-I{include}", str(c_file), "-o", str(library)], check=True)
    c_file.unlink()
    library.rename(target)


def load(name: str, form: str) -> ModuleType:
    """Return a new module of this form. It is not added to sys.modules."""
    if form == PLAIN:
        loader: SourceFileLoader | ExtensionFileLoader = SourceFileLoader(name, str(_source(name)))
    else:
        loader = ExtensionFileLoader(name, str(build(name)))
    spec = importlib.util.spec_from_loader(name, loader, origin=loader.path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def use(form: str) -> None:
    """Make `import` return this form of all modules that can be compiled."""
    for name in modules():
        module = load(name, form)
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        setattr(importlib.import_module(parent), last, module)


def use_configured_form() -> None:
    """Use the form in `KAVKA_FORM` if it is set. For a conftest."""
    form = os.environ.get("KAVKA_FORM")
    if form in FORMS and not os.environ.get("_KAVKA_FORM_IN_USE"):
        os.environ["_KAVKA_FORM_IN_USE"] = form
        use(form)
