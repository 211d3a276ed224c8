"""Without the optional packages everything else works, and the callbacks say what is missing."""

import subprocess
import sys

import pytest

WITHOUT = """
import sys

import pytest
sys.modules["lightning"] = sys.modules["transformers"] = None  # importing them now fails
import lagreach
from lagreach import callbacks
from lagreach.errors import UnsupportedError
print(callbacks.watch is lagreach.watch)  # watching loads no trainer, or this would have failed
for make in (lambda: callbacks.LightningCallback(), lambda: callbacks.TrainerCallback(None)):
    try:
        make()
    except UnsupportedError as error:
        print(error)
"""


@pytest.mark.thorough
def test_the_callbacks_name_the_extra_to_install():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert "True" in done.stdout.splitlines()[0]
    assert 'pip install "lagreach[lightning]"' in done.stdout
    assert 'pip install "lagreach[transformers]"' in done.stdout
