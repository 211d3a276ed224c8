"""What the checks found, once each: files and sizes that used to get through, or to come out as somebody else's error."""

import json
import shutil
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import lagreach
from lagreach._util.disk import disk_errors, make_folder, write_whole
from lagreach.cli.diagnose import load_data, load_model
from lagreach.data.tensor_files import read_tensors
from lagreach.diagnosis.measure import MeasureSettings
from lagreach.diagnosis.record_json import decode, encode
from lagreach.errors import InputError, RunError, TooLargeError
from lagreach.papers.cayci import bounds
from lagreach.study.config import find_study, read_config
from lagreach.study.runner import run_study
from lagreach.study.status import run_status
from lagreach.study.store import RunDirectory
from lagreach.study.tables import read_rows, write_rows
from lagreach.tasks import make_task
from tests.reliability.damage import edit_diagnosis
from tests.reliability.hostile import STUDY, bomb, npy_header
from tests.reliability.runs import SMALL
from tests.reliability.soak import diagnose_once, small_problem
from tests.study.test_runs import contents

pytestmark = pytest.mark.thorough

SMOKE = find_study(str(SMALL)).at_scale("smoke")


@pytest.fixture(scope="module")
def diagnosis():
    return diagnose_once()


@pytest.fixture
def saved(diagnosis, tmp_path):
    diagnosis.save(tmp_path / "d.nc")
    return tmp_path / "d.nc"


def test_one_changed_digit_in_a_diagnosis_is_noticed(saved):
    content = saved.read_bytes()
    at = content.index(b'"seed"')
    saved.write_bytes(content[:at] + content[at:].replace(b"0", b"1", 1))
    with pytest.raises(InputError, match="checksum in it does not match"):
        lagreach.load(saved)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda fields: fields.update(sequences="many"), "sequences is not what it should be"),
        (lambda fields: fields.update(layers=None), "layers is not what it should be"),
        (lambda fields: fields.update(partial=1), "partial is not what it should be"),
        (
            lambda fields: fields["layers"]["items"][0]["fields"]["window"]["fields"]["delta"].update(
                shape=[0], values=[]
            ),
            "another length",
        ),
    ],
)
@pytest.mark.usefixtures("_as_users_run_it")
def test_a_record_with_wrong_fields_is_refused(diagnosis, change, match):
    record = json.loads(json.dumps(encode(diagnosis)))
    change(record["fields"])
    with pytest.raises(InputError, match=match):
        decode(record)


@pytest.mark.parametrize("link", [h5py.SoftLink("/elsewhere"), h5py.ExternalLink("other.nc", "record")])
def test_links_out_of_a_diagnosis_are_not_followed(saved, link):
    edit_diagnosis(saved, lambda file: file.move("record", "elsewhere"))
    edit_diagnosis(saved, lambda file: file.__setitem__("record", link))
    with pytest.raises(InputError, match="lies outside the file"):
        lagreach.load(saved)


def test_an_archive_is_measured_before_it_is_unpacked(tmp_path):
    bomb(tmp_path / "bomb.npz", "x.npy", npy_header((10,)))
    assert (tmp_path / "bomb.npz").stat().st_size < 2**25
    with pytest.raises(TooLargeError, match=r"12\.0 GiB"):
        read_tensors(tmp_path / "bomb.npz")


def test_a_view_that_repeats_one_number_is_measured_by_what_it_shows(tmp_path):
    torch.save({"x": torch.zeros(1).expand(10**12), "y": torch.zeros(1)}, tmp_path / "x.pt")
    with pytest.raises(TooLargeError, match="fit into memory"):
        read_tensors(tmp_path / "x.pt")


@pytest.mark.parametrize(
    ("tensors", "match"),
    [
        ({"x": np.zeros((4, 3, 1)), "y": np.zeros((3, 3, 1))}, "different numbers"),
        ({"x": np.zeros(()), "y": np.zeros(3)}, "single number"),
        ({"x": np.zeros((4, 3, 1)) * 1j, "y": np.zeros(4)}, "real numbers"),
        ({"x": np.zeros((4, 3, 1))}, "need x and y"),
    ],
)
def test_data_that_do_not_go_together_are_refused(tmp_path, tensors, match):
    np.savez(tmp_path / "data.npz", **tensors)
    with pytest.raises(InputError, match=match):
        load_data(tmp_path / "data.npz")


def test_what_fails_in_the_users_own_code_is_told_with_its_place(tmp_path, monkeypatch):
    (tmp_path / "own_models.py").write_text("def build():\n    return {}['key']\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"KeyError: 'key' \(.*own_models.py, line 2\)"):
        load_model("own_models:build")


def test_references_in_a_study_count_as_often_as_they_are_followed(tmp_path):
    lines = ["a0: &a0 [x, x]", *(f"a{k}: &a{k} [*a{k - 1}, *a{k - 1}]" for k in range(1, 40))]
    for text in (STUDY + "\n".join(lines), STUDY + "task: &t {a: *t}", "[" * 10_000, STUDY + "seeds: 1000000000"):
        (tmp_path / "study.yaml").write_text(text)
        with pytest.raises(InputError if "seeds" in text else (TooLargeError, InputError)):
            read_config(tmp_path / "study.yaml")
    (tmp_path / "study.yaml").write_text(STUDY.replace("cell: lstm", "cell: &c lstm") + "network: {cell: *c}")
    assert read_config(tmp_path / "study.yaml").network == {"cell": "lstm"}


@pytest.mark.parametrize(("name", "match"), [("plan.xyz", "unknown format"), ("missing/plan.png", "does not exist")])
def test_a_figure_that_cannot_be_written_is_refused(tmp_path, name, match):
    with pytest.raises(InputError, match=match):
        lagreach.plan("power", beta=1.0, sigma=5.0).figure(tmp_path / name)


@pytest.mark.usefixtures("_as_users_run_it")
def test_options_of_a_task_of_the_wrong_kind_are_refused():
    with pytest.raises(InputError, match="options of the multi_lag task do not fit"):
        make_task("multi_lag", lags=3)


def test_sequences_of_a_billion_steps_are_refused():
    x, y = torch.zeros(1).expand(16, 10**9, 1), torch.zeros(16, 1)
    model = lagreach.GatedRNN("diag_gate", 1, 2, 1)
    for call in (lagreach.diagnose, lagreach.lag_gradients):
        with pytest.raises(TooLargeError, match="too long"):
            call(model, (x, y)) if call is lagreach.diagnose else call(model, x, y)


@pytest.mark.parametrize("words", ["No space left on device (os error 28)", "write failed: Disk quota exceeded"])
def test_a_full_disk_is_known_by_the_words_of_any_library(tmp_path, words):
    with pytest.raises(RunError, match="disk is full"), disk_errors(tmp_path):
        raise RuntimeError(words)
    with pytest.raises(ZeroDivisionError), disk_errors(tmp_path):
        raise ZeroDivisionError


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot be written"):
        make_folder(tmp_path / "file" / "inside")
    with pytest.raises(RunError, match="cannot be written"):
        write_whole(tmp_path / ("a" * 300), b"too long a name")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_lock_that_is_a_link_empties_nothing(tmp_path):
    (tmp_path / "letter").write_text("dear")
    run = RunDirectory.create(tmp_path / "run", SMOKE)
    (run.path / ".lock").unlink()
    (run.path / ".lock").symlink_to(tmp_path / "letter")
    with pytest.raises(RunError, match="cannot be written"), run.lock():
        pass
    assert (tmp_path / "letter").read_text() == "dear"


def test_a_run_stopped_at_its_very_start_can_be_started_again(tmp_path):
    run = RunDirectory.create(tmp_path / "run", SMOKE)
    run.config_path.unlink()
    (run.path / ".writing-half").touch()
    assert RunDirectory.create(tmp_path / "run", SMOKE).config() == SMOKE


def test_status_is_not_confused_by_strange_names(tmp_path):
    run = RunDirectory.create(tmp_path / "run", SMOKE)
    run.training("a").mkdir()
    for name in ("state-.safetensors", "state-x.safetensors", "state-000001.safetensors"):
        (run.training("a") / name).touch()
    assert run_status(run.path).epochs == {"a": (1, 2)}


def test_a_table_without_its_columns_is_refused(tmp_path):
    write_rows(tmp_path / "t.parquet", [{"epoch": 1}])
    with pytest.raises(InputError, match="columns are missing"):
        read_rows(tmp_path / "t.parquet", ("epoch", "loss"))


@pytest.mark.parametrize("victim", ["model-000000.safetensors", "recovered.parquet", "metrics.parquet"])
def test_what_a_finished_training_lost_is_made_again(tmp_path, victim):
    whole = run_study(SMOKE, tmp_path / "whole", show_progress=False)
    shutil.copytree(whole.path, tmp_path / "copy")
    (tmp_path / "copy" / "trainings" / "a" / victim).write_bytes(b"damaged")
    again = run_study(SMOKE, tmp_path / "copy", resume=True, show_progress=False)
    assert contents(again) == contents(whole)


class Packed(nn.Module):
    """A recurrent layer with time first, on packed sequences."""

    def __init__(self):
        super().__init__()
        self.rnn, self.read = nn.GRU(2, 3), nn.Linear(3, 1)

    def forward(self, x, lengths=None):
        packed = pack_padded_sequence(x.transpose(0, 1), lengths, enforce_sorted=False)
        return self.read(pad_packed_sequence(self.rnn(packed)[0], total_length=x.shape[1])[0].transpose(0, 1))


def test_a_loss_function_of_ones_own_works_with_any_layout_of_the_batch(generator):
    model, lengths = Packed().double(), torch.tensor([5, 2, 4])
    x = torch.randn(3, 5, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(3, 5, 1, generator=generator, dtype=torch.float64)

    def loss(output, y, mask):
        return ((output - y).abs()[..., 0] * mask).sum(1)

    totals = lagreach.lag_gradients(model, x, y, loss, lengths=lengths).total()
    inside = torch.arange(5) < lengths[:, None]
    loss(model(x, lengths), y, inside).mean().backward()
    for name, grad in totals.items():
        torch.testing.assert_close(grad, model.get_parameter(name).grad)


def test_no_sequences_are_not_taken_for_all_of_them(diagnosis):
    model, data = small_problem()
    with pytest.raises(InputError, match="positive"):
        lagreach.diagnose(model, data, sequences=0)
    with pytest.raises(InputError, match="positive"):
        lagreach.compare([diagnosis], sequences=0)


def test_a_page_for_more_sequences_than_a_float_can_count(diagnosis, tmp_path):
    replace(diagnosis, sequences=2**63 - 1).report(tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 1000


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda x, y: {"x": x, "y": y, "lengths": torch.full((16,), 99)}, "within the sequences"),
        (lambda x, y: {"x": x, "y": y, "lengths": torch.full((16,), 2.5)}, "whole numbers"),
        (lambda x, y: {"x": x[:, :0], "y": y[:, :0]}, "empty axis"),
        (lambda x, y: {"x": x > 0, "y": y}, "does not run on the data"),
        (lambda x, y: {"x": x[..., 0], "y": y}, "one series, not sequences"),
    ],
)
@pytest.mark.usefixtures("_as_users_run_it")
def test_data_that_a_model_cannot_take_are_refused_in_words(change, match):
    _, (x, y) = small_problem()
    with pytest.raises(InputError, match=match):
        lagreach.diagnose(nn.GRU(1, 1, batch_first=True), change(x, y))


def test_targets_in_bfloat16_are_taken():
    model, (x, y) = small_problem()
    settings = MeasureSettings(blocks=8, probes=1, flips=99)
    assert lagreach.diagnose(model, (x, y.bfloat16()), lags=[0, 2], settings=settings).available == 16


def test_a_printed_bound_beyond_all_numbers_is_infinite_and_extreme_sizes_are_refused():
    common = {"alpha": 0.3, "n": 8, "nu": (0.5, 1.0), "delta": 0.05, "d": 1, "form": "printed"}
    assert bounds.theorem2("tanh", error=0.5, T=1000, **common).m == float("inf")
    with pytest.raises(InputError, match="too extreme"):
        bounds.theorem2("tanh", error=1e-308, T=4, **common)
    with pytest.raises(InputError, match="counts the steps"):
        bounds.theorem2("tanh", error=0.5, T=10**12, **common)


def test_a_training_that_stopped_between_its_last_weights_and_its_last_metrics_goes_on(tmp_path):
    whole = run_study(SMOKE, tmp_path / "whole", show_progress=False)
    again = RunDirectory(shutil.copytree(whole.path, tmp_path / "copy"))
    metrics = again.training("a") / "metrics.parquet"
    write_rows(metrics, read_rows(metrics)[:1], again.write)
    (again.training("a") / "state-000002.safetensors").unlink()
    assert contents(run_study(SMOKE, again.path, resume=True, show_progress=False)) == contents(whole)
    assert "a: going on from epoch 1" in (again.path / "log.txt").read_text()
