"""What a study is, as a YAML file: a task, variants of a network, how they are trained and diagnosed, and claims to test.

Every key is checked. A key that is not known is refused with the nearest known one.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lagreach._util.disk import is_file
from lagreach.diagnosis.settings import default, meaning
from lagreach.errors import InputError, LagreachError, TooLargeError
from lagreach.study.kinds import registered_kinds

SCALES = ("smoke", "small", "paper")
PROTOCOLS = Path(__file__).parent / "protocols"
LARGEST_FILE = 2**18  # bytes of YAML
MOST_VALUES = 20_000  # in a file; what a YAML reference (*name) repeats counts every time
DEEPEST = 50
MOST_DIAGNOSES = 10**6
LARGEST_NETWORK = 2**31  # weights of one layer's recurrence, over all layers and seeds
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.]{0,63}$"  # becomes part of file names


class Part(BaseModel):
    """A part of a configuration: frozen, and without keys that nobody reads."""

    model_config = ConfigDict(frozen=True, extra="forbid")


P = TypeVar("P", bound=Part)


class Network(Part):
    """A network; the keys are those of `lagreach.GatedRNN`."""

    cell: str
    hidden_size: int = Field(default=64, ge=1, le=2**16)
    num_layers: int = Field(default=1, ge=1, le=2**10)
    gate_init: float | None = None
    forget_bias: float | None = None
    chrono: int | None = None
    layernorm: bool = False
    recurrent_init: Literal["orthogonal", "uniform"] = "orthogonal"


class TrainingPlan(Part):
    """How a network is trained; the keys are those of `lagreach.train` and `OptimiserSettings`."""

    sequences: int = Field(default=8000, ge=1, le=10**9)
    epochs: int = Field(default=400, ge=0, le=10**8)
    batch: int = Field(default=16, ge=1, le=10**7)
    fresh: bool = False
    optimiser: Literal["sgd", "momentum", "adam", "adamw"] = "adamw"
    lr: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 0.0
    clip: float | None = None
    schedule: Literal["constant", "cosine", "linear", "step"] = "constant"
    warmup: int = Field(default=0, ge=0, le=10**9)
    precision: Literal["float32", "float16"] = "float32"  # of recurrent products on a GPU; float16 is faster
    save_every: int = Field(default=5, ge=1, le=10**8)  # epochs between states that a resumed run goes on from


class DiagnosisSettings(Part):
    """How checkpoints are diagnosed, by each of `recipes`."""

    sequences: int = Field(default=512, ge=16, le=10**7)
    lags: tuple[int, ...] | Literal["auto"] = "auto"
    strength: float = Field(default=default("strength"), description=meaning("strength"))
    error: float = Field(default=default("error"), description=meaning("error"))
    blocks: int = Field(default=16, ge=4, le=10**5, description=meaning("blocks"))
    probes: int = Field(default=default("probes"), ge=1, le=10**3, description=meaning("probes"))
    recipes: tuple[str, ...] = ("exact",)
    budget_grid: tuple[int, ...] = (100, 300, 1000, 3000, 8000, 30000)

    @model_validator(mode="before")
    @classmethod
    def _word_of_version_0_1(cls, content: Any) -> Any:
        """Recipes were called forms, and studies of that time are still read."""
        return (
            {("recipes" if k == "forms" else k): v for k, v in content.items()}
            if isinstance(content, dict)
            else content
        )


# Recipes of a diagnosis, in the names of `lagreach.diagnose`; "paper" is the printed one (see `paper_window`).
RECIPES: dict[str, dict[str, str]] = {
    "exact": {"transport": "exact", "signal": "dependence", "noise": "gradient"},
    "first_order": {"transport": "first-order", "signal": "dependence", "noise": "gradient"},
    "exact_lag_noise": {"transport": "exact", "signal": "dependence", "noise": "lag"},
    "paper": {},
}


class Variant(Part):
    """One network with one way of training it; keys of `network` and `training` here go before the study's."""

    name: str = Field(pattern=NAME)
    role: str = ""  # what claims call it; its name if empty
    group: str = ""  # claims are tested in each group, for instance for each optimiser
    network: dict[str, Any] = {}
    training: dict[str, Any] = {}


class ClaimTest(Part):
    """A claim of a paper: which test it is put to, with what it says in print."""

    test: str
    claim: str
    printed: str
    options: dict[str, Any] = {}


class StudyConfig(Part):
    """A whole study. `scales` holds the keys that differ at each scale."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    title: str
    about: str = ""
    kind: Literal["training", "convergence", "validation"] = "training"
    task: dict[str, Any] = {}
    network: dict[str, Any] = {}
    training: dict[str, Any] = {}
    variants: tuple[Variant, ...] = ()
    experiments: tuple[str, ...] = ()  # of a study of kind "convergence"
    validation: dict[str, Any] = {}  # of a study of kind "validation"; see `studies.validation.design`
    seeds: int = Field(default=5, ge=1, le=10**4)
    seed: int = Field(default=0, ge=0, le=2**62)
    checkpoints: tuple[float, ...] = (0.0, 1.0)  # as fractions of the epochs
    test_sequences: int = Field(default=256, ge=1, le=10**7)
    diagnosis: DiagnosisSettings = DiagnosisSettings()
    claims: tuple[ClaimTest, ...] = ()
    scales: dict[str, dict[str, Any]] = {}
    scale: str = "paper"

    @model_validator(mode="after")
    def _check(self) -> StudyConfig:
        names = [variant.name for variant in self.variants]
        if len(set(names)) != len(names):
            raise ValueError("two variants have the same name")
        if not all(0 <= at <= 1 for at in self.checkpoints):
            raise ValueError("checkpoints are fractions of the training, from 0 to 1")
        unknown = set(self.diagnosis.recipes) - set(RECIPES)
        if unknown:
            raise ValueError(f"unknown recipe {sorted(unknown)}; recipes are {', '.join(RECIPES)}")
        if self.kind == "convergence":
            if not self.experiments:
                raise ValueError("a study of this kind needs experiments")
        elif self.kind == "validation":
            if not self.validation:
                raise ValueError("a study of this kind needs a validation plan")
        else:
            if not self.variants:
                raise ValueError("a study needs at least one variant")
            for variant in self.variants:
                network = self.network_of(variant)
                self.training_of(variant)
                if network.num_layers * network.hidden_size**2 * self.seeds > LARGEST_NETWORK:
                    raise ValueError(f"the networks of {variant.name} would not fit into memory")
        if len(self.variants) * self.seeds * len(self.checkpoints) * len(self.diagnosis.recipes) > MOST_DIAGNOSES:
            raise ValueError(f"more than {MOST_DIAGNOSES} diagnoses in one study")
        return self

    def variant(self, name: str) -> Variant:
        """Return a variant by its name."""
        return next(v for v in self.variants if v.name == name)

    def network_of(self, variant: Variant) -> Network:
        """Network of a variant."""
        return parse(Network, {**self.network, **variant.network}, f"network of {variant.name}")

    def training_of(self, variant: Variant) -> TrainingPlan:
        """Training of a variant."""
        return parse(TrainingPlan, {**self.training, **variant.training}, f"training of {variant.name}")

    def checkpoint_epochs(self, variant: Variant) -> list[int]:
        """Epochs that are diagnosed; always the last one too."""
        epochs = self.training_of(variant).epochs
        return sorted({round(at * epochs) for at in self.checkpoints} | {epochs})

    def seed_list(self) -> list[int]:
        """Seeds of the replicas."""
        return [self.seed + k for k in range(self.seeds)]

    def at_scale(self, scale: str) -> StudyConfig:
        """Return the study with the keys of one scale put in, nested keys one by one."""
        if scale not in self.scales and scale != "paper":
            raise InputError(
                "this study has no such scale", got=repr(scale), expected=", ".join([*self.scales, "paper"])
            )
        changed = _merge(self.model_dump(), self.scales.get(scale, {}))
        return parse(StudyConfig, {**changed, "scale": scale, "scales": {}}, f"{self.name} at scale {scale}")

    def only_group(self, group: str) -> StudyConfig:
        """Return the study with the variants of one group alone."""
        kept = tuple(variant for variant in self.variants if variant.group == group)
        if not kept:
            known = sorted({variant.group for variant in self.variants})
            raise InputError("this study has no such group", got=repr(group), expected=", ".join(known) or "no groups")
        return self.model_copy(update={"variants": kept})


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        nested = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if nested else value
    return merged


def parse(kind: type[P], content: Mapping[str, Any], what: str) -> P:
    """Check a configuration; errors name the key, what was got, and the nearest known key."""
    try:
        return kind.model_validate(dict(content))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(place) for place in first["loc"])
        if first["type"] == "extra_forbidden":
            known = _keys_at(kind, first["loc"][:-1])
            near = difflib.get_close_matches(str(first["loc"][-1]), known, n=1)
            raise InputError(
                f"unknown key in the {what}",
                got=where,
                expected=", ".join(known),
                fix=f"did you mean {near[0]}?" if near else None,
            ) from None
        raise InputError(
            f"the {what} does not fit",
            got=f"{where}: {_shown(first.get('input'))}",
            expected=first["msg"].removeprefix("Value error, "),
        ) from None


def _shown(value: object) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:  # a number of thousands of digits
        return "a number too long to print"


def _keys_at(kind: type[BaseModel], path: tuple[Any, ...]) -> list[str]:
    """Known keys of a nested part, following the fields along the path."""
    for step in path:
        if isinstance(step, int):
            continue
        inner = kind.model_fields[step].annotation
        parts = [inner, *get_args(inner)]
        kind = next(p for p in parts if isinstance(p, type) and issubclass(p, BaseModel))
    return list(kind.model_fields)


def read_config(path: Path) -> StudyConfig:
    """Read a study from a YAML file; nothing in it is executed."""
    if not is_file(path):
        raise InputError(
            "there is no such study file", got=str(path), expected="the path of a YAML file, see `lagreach study show`"
        )
    if path.stat().st_size > LARGEST_FILE:
        raise TooLargeError(
            "this file is too large for a study",
            got=f"{path.name}: {path.stat().st_size} bytes",
            expected=f"at most {LARGEST_FILE} bytes",
        )
    try:
        text = path.read_text(encoding="utf-8")
        _check_extent(yaml.compose(text, Loader=yaml.SafeLoader), {}, DEEPEST)
        content = yaml.safe_load(text)
    except LagreachError:
        raise
    except Exception as error:  # dates, numbers and tags that make no sense raise anything
        raise InputError(
            "this file is not YAML", got=f"{path.name}: {error}", expected="what `lagreach study show` prints"
        ) from error
    if not isinstance(content, dict):
        raise InputError(
            "a study is a YAML mapping",
            got=f"{path.name}: {type(content).__name__}",
            expected="keys and values, as `lagreach study show` prints them",
        )
    return parse(StudyConfig, {str(k): v for k, v in content.items()}, f"study {path.name}")


def _check_extent(node: yaml.Node | None, seen: dict[int, int], deepest: int) -> int:
    """Number of values below a node. References are cheap in a file and dear when they are followed, so they count in full."""
    if node is None:
        return 0
    if deepest == 0:
        raise TooLargeError("this study is nested too deeply", expected=f"at most {DEEPEST} levels")
    if id(node) not in seen:
        # until it is counted: a node inside itself, by reference, is endless and must be refused
        seen[id(node)] = MOST_VALUES + 1
        parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        below = parts if isinstance(node, yaml.CollectionNode) else []
        seen[id(node)] = 1 + sum(_check_extent(part, seen, deepest - 1) for part in below)
    if seen[id(node)] > MOST_VALUES:
        raise TooLargeError(
            "this study holds too many values",
            got=f"more than {MOST_VALUES}",
            fix="write out fewer values, and fewer references (&name, *name)",
        )
    return seen[id(node)]


def known_studies() -> dict[str, Path]:
    """Studies that come with the package, and those of registered kinds."""
    folders = [PROTOCOLS, *(kind.protocols for kind in registered_kinds())]
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}


def find_study(name: str) -> StudyConfig:
    """Return a study by the name of one that comes with the package, or by the path of a YAML file."""
    known = known_studies()
    if name in known:
        return read_config(known[name])
    if Path(name).suffix in (".yaml", ".yml"):
        return read_config(Path(name))
    near = difflib.get_close_matches(name, known, n=1)
    raise InputError(
        "unknown study",
        got=repr(name),
        expected=f"{', '.join(known)}, or the path of a YAML file",
        fix=f"did you mean {near[0]}?" if near else None,
    )
