"""Sequences that are there more than once count once: in pairs, in tests, and in N."""

import numpy as np
import pytest
import torch
from scipy.signal import lfilter
from scipy.stats import binom

import lagreach
from lagreach import GatedRNN
from lagreach.data.copies import distinct
from lagreach.data.pairs import plan_blocks
from lagreach.data.sequences import as_sequences
from lagreach.data.survey import survey
from lagreach.errors import InputError
from tests.data.cases import false_dependences, noise


@pytest.fixture(autouse=True)
def _without_type_checks(_as_users_run_it):
    """As users run it: many small diagnoses."""


def repeated(count, times, jitter=0.0):
    """Independent sequences, each there so many times."""

    def make(rng):
        data = [noise(rng, count, 24, 1).repeat(times, 1, 1) for _ in range(2)]
        return tuple(part + jitter * noise(rng, *part.shape) for part in data)

    return make


def drawn_again(count, of):
    """Some sequences, then some of them again, drawn at random."""

    def make(rng):
        again = torch.from_numpy(rng.integers(0, count, of - count))
        data = [noise(rng, count, 24, 1) for _ in range(2)]
        return tuple(torch.cat((part, part[again])) for part in data)

    return make


REPEATS = {
    "24 x 4": repeated(24, 4),
    "48 x 2": repeated(48, 2),
    "128 x 2": repeated(128, 2),
    "128 x 4": repeated(128, 4),
    "half of 256": drawn_again(128, 256),
    "24 x 4, nearly": repeated(24, 4, 1e-3),
    "128 x 2, nearly": repeated(128, 2, 1e-3),
    "48 x 2, augmented": repeated(48, 2, 0.05),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", REPEATS.values(), ids=REPEATS)
def test_copies_do_not_make_dependences(make):
    assert false_dependences(make, 200)[0] <= binom.ppf(0.9995, 200, 0.05)


@pytest.mark.parametrize("name", [pytest.param("24 x 4", marks=pytest.mark.thorough), "24 x 4, nearly"])
def test_copies_do_not_make_dependences_in_a_few_runs(name):
    """Before, 96 % and 81 % did."""
    assert false_dependences(REPEATS[name], 16)[0] <= binom.ppf(0.999, 16, 0.05)


def augmented(rng, kind, noise_size, target="number"):
    """24 sequences in four noisy versions each, with the very same target."""
    burn_in, memory = 100, {"noise": 0.0, "AR": 0.95}[kind]
    x = lfilter([1], [1, -memory], rng.normal(size=(24, 24 + burn_in, 1)), axis=1)[:, burn_in:]
    x = np.tile(x / x.std(), (4, 1, 1))
    y = {"number": rng.normal(size=(24, 1)), "steps": rng.normal(size=(24, 24, 1)), "class": rng.integers(0, 3, 24)}[
        target
    ]
    x = x + noise_size * rng.normal(size=x.shape)
    return torch.from_numpy(x).float(), torch.from_numpy(np.tile(y, (4,) + (1,) * (y.ndim - 1)))


@pytest.mark.parametrize(
    ("kind", "size", "target"),
    [
        *(("noise", size, target) for size in (0.1, 0.2, 0.3) for target in ("number", "steps")),
        *(("AR", size, "number") for size in (0.1, 0.2)),
        ("noise", 0.1, "class"),
    ],
)
def test_noisy_versions_with_the_same_target_count_once(kind, size, target):
    """Before, with one number as the target, noise of a tenth was noticed in 9 of 12 data sets, and three tenths in none."""
    for seed in range(8):
        seen = survey(as_sequences(augmented(np.random.default_rng(seed), kind, size, target)))
        assert len(seen.kept) == 24
        assert any("nearly copies" in note for note in seen.notes)


def test_noisy_versions_do_not_make_dependences():
    """Before, a diagnosis named false lags in 2 to 4 of 12 data sets."""

    def make(rng):
        return augmented(rng, "noise", 0.1)

    assert false_dependences(make, 12)[0] <= binom.ppf(0.999, 12, 0.05)


@pytest.mark.parametrize("size", [0.1, 0.2, 0.3])
def test_sequences_that_are_alike_because_of_their_class_are_no_copies(size):
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 20, 200)
    x = rng.normal(size=(20, 24, 1))[classes] + size * rng.normal(size=(200, 24, 1))
    for y in (torch.from_numpy(classes), torch.from_numpy(classes).float()[:, None]):
        assert survey(as_sequences((torch.from_numpy(x).float(), y))).notes == ()


def independent(rng, kind, count):
    """Inputs of some kind, 1 to 8 channels and 8 to 64 steps, that have nothing to do with each other."""
    time, channels = int(rng.choice([8, 24, 64])), int(rng.integers(1, 9))
    if kind == "tokens":
        return torch.from_numpy(rng.integers(0, 5, (count, time)))
    if kind == "AR":
        x = lfilter([1], [1, -0.95], rng.normal(size=(count, time + 100, channels)), axis=1)[:, 100:]
    elif kind == "noise":
        x = rng.normal(size=(count, time, channels))
    else:
        directions = int(kind.split()[0])
        x = (rng.normal(size=(count, directions)) @ rng.normal(size=(directions, time * channels))).reshape(
            count, time, -1
        )
    return torch.from_numpy(x.copy()).float()


TARGETS = {
    "noise": lambda x, rng: torch.from_numpy(rng.normal(size=(len(x), 1))),
    "the last input": lambda x, _: x.flatten(1)[:, -1:].double(),
    "the last input, in steps": lambda x, _: (3 * x.flatten(1)[:, -1:].double()).round() + 0.5,
    "the last input, in ranks": lambda x, _: x.flatten(1)[:, -1:].double().argsort(0).argsort(0) // 3 + 0.5,
    "its sign": lambda x, _: (x.flatten(1)[:, -1] > 0).long(),
}


@pytest.mark.thorough
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["noise", "AR", "tokens", "1 direction", "2 directions", "6 directions"])
def test_independent_sequences_are_hardly_ever_called_copies(kind, target):
    """At most once in 200."""
    runs, called = 200, 0
    for run in range(runs):
        rng = np.random.default_rng([run, 7])
        x = independent(rng, kind, int(rng.choice([16, 40, 96])))
        called += any("nearly" in note for note in survey(as_sequences((x, TARGETS[target](x, rng)))).notes)
    assert called <= binom.ppf(0.999, runs, 1 / 200)


@pytest.mark.parametrize(("name", "left"), [("24 x 4", 24), ("half of 256", 128), ("48 x 2, augmented", 48)])
def test_one_of_each_is_left(name, left):
    x, y = REPEATS[name](np.random.default_rng(0))
    seen = survey(as_sequences((x, y)))
    assert len(seen.kept) == left
    (note,) = seen.notes
    assert str(left) in note
    assert "counts once" in note
    plan = plan_blocks(as_sequences((x, y)), 32, 0, members=8)
    assert plan.available == left
    assert len(set(plan.pairs.ravel().tolist())) == plan.pairs.size == left


def test_which_one_is_left_does_not_depend_on_the_order():
    rng = np.random.default_rng(1)
    x, y = repeated(48, 2, 1e-3)(rng)
    order = torch.from_numpy(rng.permutation(96))
    kept = set(survey(as_sequences((x, y))).kept.tolist())
    assert {int(order[number]) for number in survey(as_sequences((x[order], y[order]))).kept} == kept


def test_diagnoses_count_and_say_it(generator):
    x = torch.randn(40, 16, 2, generator=generator)
    y = torch.nn.functional.pad(x[:, :-2, :1], (0, 0, 2, 0)) + 0.1 * torch.randn(40, 16, 1, generator=generator)
    model = GatedRNN("diag_gate", 2, 6, 1, generator=generator)
    once = lagreach.diagnose(model, (x, y), lags=[0, 2, 5])
    thrice = lagreach.diagnose(model, (x.repeat(3, 1, 1), y.repeat(3, 1, 1)), lags=[0, 2, 5])
    assert thrice.sequences == thrice.available == 40
    assert any("80 of 120 sequences are copies" in note for note in thrice.warnings)
    np.testing.assert_allclose(thrice.required.values, once.required.values, rtol=1e-6)
    np.testing.assert_allclose(thrice.required_if_present.values, once.required_if_present.values, rtol=1e-6)


def test_too_few_that_differ_are_refused():
    x, y = repeated(5, 20)(np.random.default_rng(2))
    with pytest.raises(InputError, match="100 sequences, 95 of them copies"):
        plan_blocks(as_sequences((x, y)), 32, 0)


def flat_family(rng, count, directions):
    """Independent sequences that vary in few directions only, with targets that follow from them."""
    basis = rng.normal(size=(directions, 24))
    x = torch.from_numpy(rng.normal(size=(count, directions)) @ basis).float()[..., None]
    return x, x.roll(1, 1)


@pytest.mark.parametrize("directions", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [60, 1000])
def test_sequences_that_are_close_by_chance_all_count(count, directions):
    data = flat_family(np.random.default_rng(3), count, directions)
    assert survey(as_sequences(data)).notes == ()


@pytest.mark.parametrize(
    "make",
    [
        lambda rng: (noise(rng, 1, 24, 1).repeat(200, 1, 1), noise(rng, 200, 24, 1)),
        lambda rng: (noise(rng, 200, 24, 1), torch.zeros(200, dtype=torch.long)),
        lambda rng: (noise(rng, 200, 24, 1), torch.from_numpy(rng.integers(0, 3, 200))),
        lambda rng: (torch.from_numpy(rng.integers(0, 9, (200, 24))), torch.from_numpy(rng.integers(0, 9, (200, 24)))),
        lambda rng: (noise(rng, 200, 24, 1) + 10 * noise(rng, 200, 1, 1), noise(rng, 200, 24, 1)),
        lambda rng: (
            torch.from_numpy(rng.standard_t(1.2, (200, 24, 1))),
            torch.from_numpy(rng.standard_t(1.2, (200, 24, 1))),
        ),
    ],
    ids=["the same input", "one class", "three classes", "tokens", "levels", "heavy tails"],
)
def test_what_is_equal_in_one_respect_is_no_copy(make):
    assert survey(as_sequences(make(np.random.default_rng(4)))).notes == ()


def test_a_mask_makes_a_difference_and_padding_does_not():
    x, y = (part.repeat(2, 1, 1) for part in (torch.randn(20, 8, 1), torch.randn(20, 8, 1)))
    mask = torch.ones(40, 8)
    mask[20:, 3] = 0
    assert len(distinct([bytes([i]) for i in (1, 2, 1)])) == 2
    assert len(survey(as_sequences((x, y, mask))).kept) == 20  # nearly alike, still
    lengths = torch.full((40,), 6)
    x[20:, 6:], y[20:, 6:] = 7.0, -7.0
    assert len(survey(as_sequences((x, y, None, lengths))).kept) == 20
