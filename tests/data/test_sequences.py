"""Windows of a series."""

import pytest
import torch

from lagreach.data.sequences import cut_series
from lagreach.errors import InputError

pytestmark = pytest.mark.usefixtures("_as_users_run_it")


@pytest.mark.parametrize("stride", [0, -1, 1.5, "2"])
def test_strides_that_lead_nowhere_are_refused(stride):
    with pytest.raises(InputError, match="stride is the number of steps") as error:
        cut_series(torch.zeros(40, 1), torch.zeros(40, 1), 10, stride)
    assert f"stride={stride!r}" in str(error.value)


@pytest.mark.parametrize("length", [0, 1, 41, 2.5, -3])
def test_lengths_that_do_not_fit_are_refused(length):
    with pytest.raises(InputError, match="a series is"):
        cut_series(torch.zeros(40, 1), torch.zeros(40, 1), length)


def test_windows_start_every_stride_steps():
    x = torch.arange(40.0)[:, None]
    for stride, starts in ((None, [0, 10, 20, 30]), (15, [0, 15, 30]), (10, [0, 10, 20, 30])):
        assert cut_series(x, x, 10, stride).batch.x[:, 0, 0].tolist() == starts


@pytest.mark.parametrize(
    ("stride", "said"), [(True, "stride=True"), (10**9, "this stride leaves one window"), (85, "at most 84")]
)
def test_strides_that_make_no_windows_are_refused(stride, said):
    series = torch.randn(100, 2)
    with pytest.raises(InputError, match=said):
        cut_series(series, series, 16, stride=stride)
    assert len(cut_series(series, series, 16, stride=84)) == 2
