"""Sequences that agree by chance are no copies, and count as often as they are there."""

import numpy as np
import pytest
import torch

from lagreach.data.chance import Agreeing, Steps
from lagreach.data.pairs import plan_blocks
from lagreach.data.sequences import as_sequences
from lagreach.data.survey import survey


def events(count, time, rate, generator):
    return (torch.rand(count, time, 1, generator=generator) < rate).float()


def rare(generator, count=500, time=48, rate=0.01):
    return events(count, time, rate, generator), events(count, time, rate, generator)


def bits(generator, count=2000, wrong=0.2):
    """Six bits, and one of them again, sometimes the wrong one."""
    x = events(count, 6, 0.5, generator)
    return x, (x[:, -3] - (torch.rand(count, 1, generator=generator) < wrong).float()).abs()


def lasting(generator, count=400, time=24):
    """Bits that hardly ever change."""
    changes = [(torch.rand(count, time, generator=generator) < 0.02).float().cumsum(1) for _ in range(2)]
    return tuple(((torch.rand(count, 1, generator=generator) < 0.5) + part)[..., None] % 2 for part in changes)


def quiet(generator):
    """Half of the sequences hold no events at all, and targets know nothing of it."""
    x, y = rare(generator, 300, 24, 0.2)
    return x * events(300, 1, 0.5, generator), y * events(300, 1, 0.5, generator)


def jittered(make, size=1e-4):
    def data(generator):
        return tuple(part + size * torch.randn(part.shape, generator=generator) for part in make(generator))

    return data


BY_CHANCE = {
    "rare events": rare,
    "rarer, longer": lambda g: rare(g, 2000, 200),
    "bits": bits,
    "bits that tell all": lambda g: bits(g, wrong=0.0),
    "lasting bits": lasting,
    "quiet sequences": quiet,
    "rare events, nearly": jittered(rare),
    "bits, nearly": jittered(bits),
}


@pytest.mark.parametrize("kind", BY_CHANCE)
def test_what_agrees_by_chance_counts_as_often_as_it_is_there(kind, generator):
    x, y = BY_CHANCE[kind](generator)
    seen = survey(as_sequences((x, y)))
    assert len(seen.kept) == len(x), seen.notes


def of_words(generator, count=48, time=12):
    return tuple(torch.randint(0, 50, (count, time), generator=generator) for _ in range(2))


def of_bits(generator, count=24, time=24):
    return events(count, time, 0.5, generator), events(count, time, 0.5, generator)


def beside_rare_events(generator):
    """Inputs repeat by chance, targets do not."""
    return events(48, 24, 0.01, generator), torch.randn(48, 24, 1, generator=generator)


COPIED = {"words": of_words, "bits": of_bits, "rare events, numbers as targets": beside_rare_events}


@pytest.mark.parametrize("times", [2, 4])
@pytest.mark.parametrize("kind", COPIED)
def test_copies_of_few_values_are_copies_all_the_same(kind, times, generator):
    data = COPIED[kind](generator)
    seen = survey(as_sequences(tuple(torch.cat([part] * times) for part in data)))
    assert len(seen.kept) == len(data[0])
    assert "copies" in seen.notes[0]


def test_how_often_whole_sequences_agree_follows_from_their_steps(generator):
    for x, expected in (
        (events(4000, 6, 0.5, generator), 0.5**6),
        (events(4000, 48, 0.01, generator), (0.99**2 + 0.01**2) ** 48),
        (lasting(generator, 4000)[0], None),
        (torch.randn(500, 24, 1, generator=generator), 0.0),
    ):
        steps = Steps(as_sequences((x, x)))
        _, counts = np.unique(x.flatten(1).numpy(), axis=0, return_counts=True)
        agree = (counts * (counts - 1.0)).sum() / (len(x) * (len(x) - 1))
        assert steps.exact() == pytest.approx(agree if expected is None else expected, rel=0.35, abs=1e-6)


def test_inputs_that_come_close_by_chance_are_expected_to(generator):
    x = events(500, 48, 0.01, generator) + 1e-3 * torch.randn(500, 48, 1, generator=generator)
    assert Steps(as_sequences((x, x))).near(0.2) == pytest.approx((0.99**2 + 0.01**2) ** 48, rel=0.35)
    assert Steps(as_sequences((torch.randn(500, 48, 1, generator=generator),) * 2)).near(0.2) < 1e-12


def test_targets_tell_where_inputs_repeat_more_often_than_expected():
    assert Agreeing(pairs=1000, inputs=100, targets=500, both=50).by_chance(1.0)
    assert not Agreeing(pairs=1000, inputs=100, targets=500, both=100).by_chance(1.0)
    assert Agreeing(pairs=1000, inputs=100, targets=500, both=100).by_chance(100.0)
    assert not Agreeing(pairs=1000, inputs=100, targets=50, both=50).by_chance(100.0)


def test_the_same_contents_lie_anywhere_in_the_order(generator):
    """If those without events followed each other, blocks of them would differ from all others."""
    x, y = rare(generator)
    dealt = plan_blocks(as_sequences((x, y)), 16, 0)
    assert sorted(dealt.pairs.ravel()) == sorted(set(dealt.pairs.ravel().tolist()))
    without = ((x.sum((1, 2)) == 0) & (y.sum((1, 2)) == 0)).numpy()[dealt.pairs]
    zero_inputs = (x.sum((1, 2)) == 0).numpy()[dealt.pairs]
    shares = [without[dealt.blocks == b].sum() / max(zero_inputs[dealt.blocks == b].sum(), 1) for b in range(16)]
    assert np.ptp([share for share in shares if share > 0]) < 0.6
    again = plan_blocks(as_sequences((x.flip(0), y.flip(0))), 16, 0)
    for one, other in zip(dealt.pairs, 499 - again.pairs, strict=True):  # the same contents, whichever of them
        assert torch.equal(x[one], x[other])
        assert torch.equal(y[one], y[other])
