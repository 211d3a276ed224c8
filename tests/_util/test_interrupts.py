"""An import that an interrupt comes into is whole afterwards."""

import importlib
import signal
import sys
import threading

import pytest

from lagreach._util.interrupts import import_whole


def test_an_interrupt_leaves_no_half_of_a_package_behind(tmp_path, monkeypatch):
    package = tmp_path / "half_imported"
    package.mkdir()
    (package / "core.py").write_text("")
    (package / "__init__.py").write_text("import time\nfrom half_imported import core\ntime.sleep(0.5)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        import_whole("half_imported")
    assert importlib.import_module("half_imported").core is sys.modules["half_imported.core"]


def test_a_package_that_cannot_be_imported_is_left_to_who_uses_it():
    import_whole("no_such_package_at_all")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_package_at_all")
