"""What `compare` refuses. What it shows of every curve: tests/statistics/test_statistics.py."""

import pytest

import lagreach
from lagreach.errors import InputError


@pytest.mark.usefixtures("_as_users_run_it")
def test_diagnoses_come_as_a_list_with_a_name_each(diagnosis):
    with pytest.raises(InputError, match=r"compare\(\[first, second\]\)"):
        lagreach.compare(diagnosis, diagnosis)
    with pytest.raises(InputError, match="nothing to compare"):
        lagreach.compare([])
    with pytest.raises(InputError, match="2 names for 1"):
        lagreach.compare([diagnosis], ["a", "b"])
    assert "model 0" in str(lagreach.compare([diagnosis]))
