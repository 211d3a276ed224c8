"""Study files: every key checked, scales put in, nothing executed."""

import pytest
import yaml

from lagreach.errors import InputError
from lagreach.study.config import SCALES, StudyConfig, find_study, known_studies, parse, read_config

SMALL = {"name": "mine", "title": "A study", "variants": [{"name": "a", "network": {"cell": "lstm"}}]}


@pytest.mark.parametrize("name", known_studies())
@pytest.mark.parametrize("scale", SCALES)
def test_the_studies_that_come_along_are_whole(name, scale):
    config = find_study(name).at_scale(scale)
    assert config.name == name
    assert config.scale == scale
    again = parse(StudyConfig, yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json"))), "copy")
    assert again == config


def test_v1_at_paper_scale_is_the_printed_protocol():
    config = find_study("livi-v1").at_scale("paper")
    sgd = config.variant("diag_sgd")
    plan, network = config.training_of(sgd), config.network_of(sgd)
    assert (plan.optimiser, plan.lr, plan.batch, plan.sequences, plan.epochs) == ("sgd", 1e-3, 16, 8000, 400)
    assert (network.hidden_size, network.gate_init, network.layernorm) == (64, 0.5, False)
    assert config.task["length"] == 1024
    assert config.task["lags"] == [32, 64, 128, 256, 512]


def test_a_scale_changes_its_keys_and_no_others():
    config = find_study("livi-v1")
    small = config.at_scale("small")
    assert small.task["noise"] == config.task["noise"]
    assert small.task["length"] == config.scales["small"]["task"]["length"]
    assert small.variants == config.variants


def test_checkpoints_are_fractions_and_the_end_is_always_there():
    config = parse(StudyConfig, SMALL | {"training": {"epochs": 40}, "checkpoints": [0.0, 0.5]}, "test")
    assert config.checkpoint_epochs(config.variants[0]) == [0, 20, 40]


def test_files_that_say_forms_for_recipes_are_still_read():
    old = SMALL | {"diagnosis": {"forms": ["exact", "paper"]}, "scales": {"small": {"diagnosis": {"forms": ["exact"]}}}}
    config = parse(StudyConfig, old, "study")
    assert config.diagnosis.recipes == ("exact", "paper")
    assert config.at_scale("small").diagnosis.recipes == ("exact",)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"sedes": 3}, "did you mean seeds"),
        ({"diagnosis": {"sequence": 64}}, "did you mean sequences"),
        ({"network": {"hiden_size": 3}}, "did you mean hidden_size"),
        ({"variants": [{"name": "a", "network": {"cell": "lstm"}, "trainng": {}}]}, "did you mean training"),
        ({"training": {"epochs": "many"}}, "training of a does not fit"),
        ({"training": {"optimiser": "lion"}}, "training of a does not fit"),
        ({"seeds": 0}, "seeds"),
        ({"checkpoints": [2.0]}, "fractions"),
        ({"variants": []}, "at least one variant"),
        ({"variants": [SMALL["variants"][0]] * 2}, "same name"),
        ({"variants": [{"name": "../a", "network": {"cell": "lstm"}}]}, "variants.0.name"),
        ({"diagnosis": {"recipes": ["fast"]}}, "unknown recipe"),
        ({"name": None}, "name"),
    ],
)
def test_bad_keys_and_values_are_named(change, match):
    with pytest.raises(InputError, match=match):
        parse(StudyConfig, SMALL | change, "study")


def test_files_that_are_no_studies(tmp_path):
    for content, match in (
        ("[1, 2]", "mapping"),
        ("a: [", "not YAML"),
        ("!!python/object/apply:os.system ['true']", "not YAML"),
    ):
        path = tmp_path / "study.yaml"
        path.write_text(content)
        with pytest.raises(InputError, match=match):
            read_config(path)
    with pytest.raises(InputError, match="no such study file"):
        find_study(str(tmp_path / "missing.yaml"))
    with pytest.raises(InputError, match="did you mean livi-v1"):
        find_study("livi-v11")
    with pytest.raises(InputError, match="no such scale"):
        find_study("livi-v1").at_scale("huge")
