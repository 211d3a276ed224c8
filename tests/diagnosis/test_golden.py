"""Numbers stay what they were, up to the rounding of other processors, whatever moves in the code."""

import json

import numpy as np
import pytest

from tests.diagnosis.golden import STORED, models, numbers


@pytest.fixture(scope="module")
def both():
    return json.loads(STORED.read_text()), numbers()


@pytest.mark.parametrize("model", models())
def test_numbers_are_those_stored(both, model):
    stored, now = (all_models[model] for all_models in both)
    assert list(now) == list(stored)
    for name, expected in stored.items():
        values, wanted = (np.array(some, dtype=float) for some in (now[name], expected))
        np.testing.assert_allclose(values, wanted, rtol=1e-6, atol=1e-9, err_msg=f"{name} of {model}")
