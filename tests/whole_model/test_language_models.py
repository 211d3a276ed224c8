"""Language models as users have them: labels that the model shifts, dicts of inputs, loaders, attention masks."""

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils.data import DataLoader

import lagreach
from lagreach.data.named_inputs import named_batch
from lagreach.data.sequences import as_sequences
from lagreach.errors import InputError
from lagreach.transport.losses import IGNORE_INDEX
from lagreach.whole_model.language_models import SHIFTED, UNSHIFTED, aligned_labels
from tests.whole_model import cases
from tests.whole_model.cases import TOKENS, hugging_face, made

pytestmark = pytest.mark.filterwarnings("ignore")
LAG = 3


def text(count=96, time=13, seed=0):
    """Tokens that often repeat the one four places before: for the next token that is lag 3."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, TOKENS, (count, time), generator=generator)
    repeat = torch.rand(count, time, generator=generator) < 0.8
    for step in range(LAG + 1, time):
        tokens[:, step] = torch.where(repeat[:, step], tokens[:, step - LAG - 1], tokens[:, step])
    return tokens


@pytest.fixture(scope="module")
def gpt():
    pytest.importorskip("transformers")
    return hugging_face("GPT2LMHeadModel").float()


def diagnosed(model, data, **options):
    return lagreach.diagnose(model, data, lags=[0, 1, LAG, 5], **options)


@pytest.mark.thorough
def test_labels_that_equal_the_inputs_are_shifted_as_the_model_does_it(gpt):
    tokens = text()
    diagnosis = diagnosed(gpt, {"input_ids": tokens, "labels": tokens})
    by_hand = diagnosed(gpt, (tokens[:, :-1], tokens[:, 1:]), loss="cross_entropy")
    assert diagnosis.layers[0].window.dependences == by_hand.layers[0].window.dependences == (LAG,)
    assert SHIFTED in diagnosis.warnings
    assert diagnosis.settings["loss"] == "cross_entropy"
    plain = diagnosed(gpt, (tokens, tokens), loss="cross_entropy")  # as trainers' examples write it
    assert SHIFTED in plain.warnings
    np.testing.assert_allclose(plain.layers[0].window.adjusted_p, diagnosis.layers[0].window.adjusted_p)


def test_the_loss_is_that_of_the_model_itself(gpt):
    tokens = text(count=16)
    sequences, loss, _ = aligned_labels(gpt, as_sequences({"input_ids": tokens, "labels": tokens}), "mse", None)
    batch = sequences.read(range(16))
    assert loss == "cross_entropy"
    assert (batch.y[:, -1] == IGNORE_INDEX).all()
    loss_of_model = gpt(input_ids=tokens, labels=tokens).loss
    logits = gpt(input_ids=tokens).logits
    torch.testing.assert_close(functional.cross_entropy(logits.flatten(0, 1), batch.y.flatten()), loss_of_model)


@pytest.mark.thorough
def test_targets_that_equal_the_inputs_of_another_model_are_named():
    tokens = text()
    model = made(cases.CausalTransformer, tokens=TOKENS, outputs=TOKENS).float()
    diagnosis = diagnosed(model, (tokens, tokens), loss="cross_entropy")
    assert UNSHIFTED in diagnosis.warnings
    other = diagnosed(model, (tokens[:, :-1], tokens[:, 1:]), loss="cross_entropy")
    assert UNSHIFTED not in other.warnings


def test_classes_of_tokens_are_not_shifted(gpt):
    """A model for token classification takes its labels as they stand, and says so by its own loss."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=TOKENS,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=4,
    )
    torch.manual_seed(0)
    model = transformers.BertForTokenClassification(config).eval()
    tokens = text(count=16)
    data = {"input_ids": tokens, "labels": tokens % 4}
    sequences, loss, notes = aligned_labels(model, as_sequences(data), "cross_entropy", None)
    assert torch.equal(sequences.read([3]).y, data["labels"][[3]])
    assert notes == ()
    assert loss == "cross_entropy"


@pytest.mark.thorough
def test_loaders_of_dicts_and_of_one_dict_agree(gpt):
    tokens = text(count=64)
    mask = torch.ones_like(tokens)
    rows = [{"input_ids": t, "labels": t, "attention_mask": m} for t, m in zip(tokens, mask, strict=True)]
    whole = diagnosed(gpt, {"input_ids": tokens, "labels": tokens, "attention_mask": mask})
    loaded = diagnosed(gpt, DataLoader(rows, batch_size=10))
    np.testing.assert_allclose(loaded.layers[0].window.delta, whole.layers[0].window.delta, rtol=1e-4)
    assert loaded.fingerprint == whole.fingerprint


@pytest.mark.thorough
def test_padding_by_an_attention_mask_takes_no_part(gpt):
    """What stands behind the ends of sequences changes nothing."""
    tokens = text(count=64)
    lengths = torch.arange(64) % 5 + 8
    inside = torch.arange(13) < lengths[:, None]
    labels = torch.where(inside, tokens, IGNORE_INDEX)
    windows = []
    for padding in (0, 7):
        ids = torch.where(inside, tokens, padding)
        data = {"input_ids": ids, "labels": labels, "attention_mask": inside.long()}
        # pairs come from the contents of the inputs, padding included: the same pairs, in the same order
        windows.append(diagnosed(gpt, data).layers[0].window)
    assert windows[0].dependences == windows[1].dependences == (LAG,)


def test_several_inputs_and_targets_with_weights():
    x, y = torch.randn(5, 7, 3), torch.randn(5, 4, 1)
    several = named_batch(((x, y), y))
    assert several is not None
    assert torch.equal(several.x, x)
    assert torch.equal(several.others[0], y)
    forecasting = named_batch(
        ({"encoder_cont": x, "decoder_cont": y, "target_scale": torch.ones(5, 2)}, (y[..., 0], None))
    )
    assert forecasting is not None
    assert forecasting.name == "encoder_cont"
    assert set(forecasting.others) == {"decoder_cont", "target_scale"}
    assert named_batch((x, y)) is None
    assert named_batch({"x": x, "y": y, "mask": None}) is None
    with pytest.raises(InputError, match="holds no targets"):
        named_batch({"inputs_embeds": x})
    with pytest.raises(InputError, match="different numbers of sequences"):
        named_batch({"input_ids": x[:3, :, 0].long(), "labels": y})


class TakesOneDict(cases.EncoderDecoder):
    def forward(self, batch):
        return super().forward(batch["encoder_cont"], batch["decoder_cont"])


@pytest.mark.thorough
def test_an_encoder_and_a_decoder_from_loaders_of_both_kinds():
    generator = torch.Generator().manual_seed(0)
    source = torch.randn(96, 8, 3, generator=generator)
    target = torch.randn(96, 5, 1, generator=generator)
    y = torch.randn(96, 5, 1, generator=generator) + 2 * source[:, -3, :1, None]
    options = {"lags": [0, 2, 5], "inputs": "source"}
    model = made(cases.EncoderDecoder).float()
    pairs = lagreach.diagnose(model, ((source, target), y), **options)
    loader = [((source[i : i + 32], target[i : i + 32]), y[i : i + 32]) for i in range(0, 96, 32)]
    loaded = lagreach.diagnose(model, loader, **options)
    named = {"encoder_cont": source, "decoder_cont": target}
    by_name = lagreach.diagnose(made(TakesOneDict).float(), (named, (y, None)), **options)
    for diagnosis in (pairs, loaded, by_name):
        assert diagnosis.layers[0].window.dependences == (2,)  # counted back from the last step of the source
        np.testing.assert_allclose(diagnosis.layers[0].window.delta, pairs.layers[0].window.delta, rtol=1e-4)


@pytest.mark.thorough
def test_sequences_of_several_lengths_in_a_loader_of_dicts(gpt):
    tokens = text(count=40)
    rows = []
    for number, row in enumerate(tokens):
        length = 9 + number % 4
        rows.append({"input_ids": row[None, :length], "labels": row[None, :length]})
    sequences = as_sequences(rows)
    batch = sequences.read([0, 3])
    assert batch.x.shape == batch.y.shape == (2, 12)
    assert batch.lengths.tolist() == [9, 12]
    assert diagnosed(gpt, rows).available == 40
