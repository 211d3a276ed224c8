"""Readers of files: damaged, foreign and hostile ones are refused in words, quickly, and without filling the memory."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from hypothesis import strategies as st
from safetensors.torch import save as safetensors_bytes

import lagreach
from lagreach.cli.diagnose import load_data
from lagreach.data.tensor_files import read_tensors
from lagreach.diagnosis.record_json import encode
from lagreach.diagnosis.result import Diagnosis
from lagreach.study.checkpoints import load_tensors, save_tensors
from lagreach.study.config import read_config
from lagreach.study.jobs import study_task
from lagreach.study.tables import read_rows, write_rows
from tests.reliability import hostile
from tests.reliability.counting import Count, Size, explore, outcome_of, scratch
from tests.reliability.damage import (
    damaged_bytes,
    damaged_values,
    endless,
    flipped,
    nested_values,
    plain_values,
    put_record,
)
from tests.reliability.runs import SMALL, run_flips, run_folders
from tests.reliability.soak import diagnose_once

EXAMPLES = {"quick": 12, "full": 300}
GOOD = "it is read or refused"


def use(diagnosis: Diagnosis) -> None:
    """Do with a diagnosis what the commands do with one."""
    str(diagnosis)
    diagnosis.window(1000)
    diagnosis.to_xarray()
    str(lagreach.suggest(diagnosis))
    str(lagreach.compare([diagnosis]))


def damaged_files(
    what: str, content: bytes, suffix: str, read: Callable[[Path], object], size: Size, share: float = 1.0
) -> Count:
    """Damage the bytes of a file and read it."""
    count = Count(f"damaged {what}", GOOD)
    with scratch() as folder:
        path = folder / f"file{suffix}"

        def trial(damaged: bytes) -> None:
            path.write_bytes(damaged)
            count.attempt(lambda: read(path), damaged[:60])

        explore(damaged_bytes(content), trial, round(share * EXAMPLES[size]), size)
    return count


def damaged_records(size: Size) -> Count:
    """Put wrong values into the record of a diagnosis, under a checksum that is right."""
    count = Count("diagnoses with wrong values inside, read and shown", GOOD)
    diagnosis = diagnose_once()
    record = encode(diagnosis)
    strange = st.one_of(
        nested_values,
        st.sampled_from(["map", "tuple", "Window", "tensor", "no such"]).map(lambda kind: {"@": kind, "items": {}}),
        plain_values.map(lambda value: {"@": "float", "value": value}),
        plain_values.map(lambda value: {"@": "array", "dtype": "float64", "shape": [value], "values": [value]}),
    )
    with scratch() as folder:
        path = folder / "diagnosis.nc"
        diagnosis.save(path)

        def trial(damaged: Any) -> None:
            put_record(path, json.dumps(damaged))
            count.attempt(lambda: use(lagreach.load(path)), _difference(record, damaged))

        explore(damaged_values(record, strange), trial, EXAMPLES[size], size)
    return count


def _difference(whole: Any, damaged: Any) -> str:
    """Say where two nested values differ first."""
    if type(whole) is type(damaged) and isinstance(whole, dict):
        for key in whole.keys() | damaged.keys():
            if whole.get(key) != damaged.get(key):
                return f"{key}." + _difference(whole.get(key), damaged.get(key))
    return f"{str(whole)[:60]} -> {str(damaged)[:100]}"


def study_files(size: Size) -> list[Count]:
    """Read studies: wrong values, wrong YAML, wrong bytes."""
    whole = yaml.safe_load(SMALL.read_text())
    wrong, text = Count("studies with wrong values", GOOD), Count("random YAML texts as studies", GOOD)
    marks = [
        *"{}[]:,-&*!|>%@?#'\"\n\t ",
        "- ",
        "? ",
        "---\n",
        "name: a",
        "title: b\n",
        "variants:\n",
        "!!int x",
        "!!binary x",
    ]
    words = ["&a", "*a", "!!", "!!set", "!!timestamp", "<<:*a", "2001-99-99", "0x", "1:99", "~", ".nan", "\ufeff"]
    pieces = st.sampled_from([*marks, *words, "\x85"])
    with scratch() as folder:
        path = folder / "study.yaml"

        def open_study() -> None:
            config = read_config(path)
            config = config.at_scale("smoke" if "smoke" in config.scales else "paper")
            if config.kind == "training":
                study_task(config)
            yaml.safe_dump(config.model_dump(mode="json"))

        def wrong_values(content: Any) -> None:
            path.write_text(yaml.safe_dump(content), encoding="utf-8")
            wrong.attempt(open_study, _difference(whole, content))

        def random_text(parts: list[str]) -> None:
            path.write_text("".join(parts), encoding="utf-8", errors="surrogatepass")
            text.attempt(open_study, parts)

        explore(damaged_values(whole), wrong_values, EXAMPLES[size], size)
        explore(st.lists(pieces | st.text(max_size=5), max_size=30), random_text, EXAMPLES[size], size)
    return [wrong, text, damaged_files("study files (YAML)", SMALL.read_bytes(), ".yaml", _study, size)]


def _study(path: Path) -> None:
    read_config(path).at_scale("paper")


def data_files(size: Size) -> list[Count]:
    """Read data and weights in every kind of file."""
    generator = torch.Generator().manual_seed(0)
    tensors = {"x": torch.randn(4, 3, 2, generator=generator), "y": torch.randn(4, 3, 1, generator=generator)}
    archive, pickled = io.BytesIO(), io.BytesIO()
    np.savez(archive, **{name: value.numpy() for name, value in tensors.items()})
    torch.save(tensors, pickled)
    old = io.BytesIO()
    torch.save(tensors, old, _use_new_zipfile_serialization=False)
    read = load_data
    return [
        damaged_files("data as .npz", archive.getvalue(), ".npz", read, size),
        damaged_files("data as .safetensors", safetensors_bytes(tensors), ".safetensors", read, size),
        damaged_files("data as .pt", pickled.getvalue(), ".pt", read, size),
        damaged_files("data as .pt of old versions of torch", old.getvalue(), ".pt", read_tensors, size),
        damaged_files("data as .pt under a wrong name", pickled.getvalue(), ".npz", read, size, 0.2),
    ]


def run_files(size: Size) -> list[Count]:
    """Read checkpoints and tables of a run."""
    with scratch() as folder:
        save_tensors(folder / "a.safetensors", {"w": torch.arange(12.0), "n": torch.tensor(3)})
        write_rows(folder / "a.parquet", [{"epoch": e, "seed": 0, "loss": 0.5, "lags": [1, 2]} for e in range(4)])
        state, table = (folder / "a.safetensors").read_bytes(), (folder / "a.parquet").read_bytes()
    return [
        damaged_files("checkpoints of a run", state, ".safetensors", load_tensors, size),
        damaged_files("tables of a run (Parquet)", table, ".parquet", lambda p: read_rows(p, ("epoch", "loss")), size),
    ]


def flipped_bits(size: Size) -> list[Count]:
    """Flip one bit of a file that carries a checksum, anywhere; and the one that HDF5 does not come back from."""
    alone = "it is refused before its library opens it"
    diagnosis, table = Count("diagnoses with one flipped bit", alone), Count("tables with one flipped bit", alone)
    rng = random.Random(0)
    with scratch() as folder:
        diagnose_once().save(folder / "d.nc")
        write_rows(folder / "t.parquet", [{"epoch": k, "loss": 0.5 / (k + 1), "lags": [1, 2]} for k in range(20)])
        for path, read, count in (
            (folder / "d.nc", lagreach.load, diagnosis),
            (folder / "t.parquet", read_rows, table),
        ):
            whole = path.read_bytes()
            places = [rng.randrange(8 * len(whole)) for _ in range({"quick": 40, "full": 3000}[size])]
            damaged = [flipped(whole, at) for at in places]
            if path.suffix == ".nc":
                damaged.append(endless(whole))
            for k, content in enumerate(damaged):
                path.write_bytes(content)
                outcome, problem = outcome_of(lambda path=path, read=read: read(path))
                count.add(outcome, None if outcome == "refused" else f"flip {k}: {problem or 'it was read'}")
    return [diagnosis, table]


def check(size: Size) -> Iterator[Count]:
    """Damage every kind of file that is read, and add the hostile ones."""
    with scratch() as folder:
        diagnose_once().save(folder / "d.nc")
        content = (folder / "d.nc").read_bytes()
    yield damaged_files("diagnoses (netCDF)", content, ".nc", lambda path: use(lagreach.load(path)), size)
    old = Path(__file__).parent.parent / "diagnosis" / "data" / "schema-1.nc"
    yield damaged_files(
        "diagnoses of version 0.1.0", old.read_bytes(), ".nc", lambda path: use(lagreach.load(path)), size
    )
    yield from flipped_bits(size)
    yield damaged_records(size)
    yield from data_files(size)
    yield from study_files(size)
    yield from run_files(size)
    yield from run_folders(size)
    yield from run_flips(size)
    yield hostile.count_hostile()
