"""Files built to do harm: they declare far more than they hold, point elsewhere, or never end.

They are read in a process of its own whose memory is limited, so that a reader that believes them fails here and not the
machine.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import torch

from tests.reliability.counting import Count, outcome_of

MEMORY = 8 * 2**30  # of address space; the libraries alone take three
GROWTH = 1024 * 2**20  # allowed, of memory really held
BOMB = 12 * 2**30
STUDY = "name: a\ntitle: b\nvariants: [{name: a, network: {cell: lstm}}]\n"


def bomb(path: Path, name: str, header: bytes = b"") -> None:
    """Write an archive of a few megabytes that unpacks to twelve gibibytes of zeros."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    start = packer.compress(header) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(2**24)) + packer.flush(zlib.Z_FULL_FLUSH)
    packed = start + block * (BOMB // 2**24) + packer.flush(zlib.Z_FINISH)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, packed)
        info = archive.filelist[0]
        info.compress_type, info.file_size = zipfile.ZIP_DEFLATED, BOMB + len(header)
        archive._didModify = True


def npy_header(shape: tuple[int, ...]) -> bytes:
    """Beginning of a .npy file that declares a shape."""
    held = io.BytesIO()
    np.lib.format.write_array_header_1_0(held, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return held.getvalue()


def _diagnosis(path: Path, write: Callable[[h5py.File], None]) -> None:
    with h5py.File(path, "w") as file:
        file.attrs["schema_version"] = 1
        write(file)


def build(folder: Path) -> None:
    """Write all hostile files."""
    huge = 10**12
    made: dict[str, Callable[[h5py.File], None]] = {
        "huge": lambda f: f.create_dataset("record", shape=(huge,), dtype="u1", chunks=(2**20,)),
        "long_text": lambda f: f.create_dataset("record", shape=(), dtype="S2000000000"),
        "texts": lambda f: f.create_dataset("record", shape=(10**10,), dtype=h5py.string_dtype(), chunks=(2**16,)),
        "elsewhere": lambda f: f.__setitem__("record", h5py.ExternalLink("other.nc", "record")),
        "circle": lambda f: f.__setitem__("record", h5py.SoftLink("/record")),
        "device": lambda f: f.create_dataset("record", (2**33,), "u1", external=[("/dev/zero", 0, 2**33)]),
        "group": lambda f: f.create_group("record"),
        "version": lambda f: f.attrs.__setitem__("schema_version", 10**9),
        "version_text": lambda f: f.attrs.__setitem__("schema_version", "one"),
        "empty_version": lambda f: f.attrs.__setitem__("schema_version", h5py.Empty("i8")),
        "nested": lambda f: f.__setitem__("record", "[" * 10**6),
        "digits": lambda f: f.__setitem__("record", "9" * 10**6),
        "shape": lambda f: f.__setitem__(
            "record", json.dumps({"@": "array", "dtype": "f8", "shape": [huge], "values": [1.0]})
        ),
    }
    for name, write in made.items():
        _diagnosis(folder / f"{name}.nc", write)
    with zipfile.ZipFile(folder / "declares.npz", "w") as archive:
        archive.writestr("x.npy", npy_header((huge,)) + bytes(80))
        archive.writestr("y.npy", npy_header((3,)) + bytes(24))
    with zipfile.ZipFile(folder / "overflow.npz", "w") as archive:
        archive.writestr("x.npy", npy_header((2**40, 2**40)) + bytes(80))
    bomb(folder / "bomb.npz", "x.npy", npy_header((BOMB // 8,)))
    bomb(folder / "bomb.pt", "archive/data.pkl")
    x = torch.zeros(1)
    torch.save({"x": x.expand(huge), "y": x}, folder / "repeated.pt")
    torch.save({"x": x.expand(16, 10**8, 1), "y": torch.zeros(16, 1)}, folder / "long.pt")
    none = torch.zeros(2, 0, dtype=torch.long)
    sparse = torch.sparse_coo_tensor(none, torch.zeros(0), (10**9, 10**9), check_invariants=False)
    torch.save({"x": sparse, "y": x}, folder / "sparse.pt")
    torch.save({"x": torch.empty(huge, device="meta"), "y": x}, folder / "meta.pt")
    torch.save(list(range(10)), folder / "list.pt")
    torch.save({"x": [1, 2], "y": "text"}, folder / "words.pt")
    nested: list[object] = []
    for _ in range(400):
        nested = [nested]
    (folder / "nested.pt").write_bytes(pickle.dumps(nested))
    header = json.dumps({"x": {"dtype": "F32", "shape": [huge], "data_offsets": [0, 4 * huge]}}).encode()
    (folder / "declares.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
    (folder / "header.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")
    deep = b'{"x":' + b"[" * 10**5 + b"]" * 10**5 + b"}"
    (folder / "deep.safetensors").write_bytes(len(deep).to_bytes(8, "little") + deep)
    laughs = ["a0: &a0 [x, x]"] + [f"a{k}: &a{k} [*a{k - 1}, *a{k - 1}]" for k in range(1, 40)]
    merges = ["m0: &m0 {k: v}"] + [f"m{k}: &m{k} {{<<: [*m{k - 1}, *m{k - 1}]}}" for k in range(1, 40)]
    studies = {
        "laughs": STUDY + "\n".join(laughs),
        "hidden_laughs": STUDY + "task:\n  " + "\n  ".join(laughs),
        "merges": STUDY + "\n".join(merges),
        "itself": STUDY + "task: &t {a: *t}",
        "nested": "[" * 50_000,
        "nested_keys": "{a: " * 50_000,
        "long": STUDY + "about: " + "a" * 10**7,
        "many": STUDY + "checkpoints: [" + "0, " * 10**5 + "1]",
        "seeds": STUDY + "seeds: 1000000000",
        "width": STUDY + "network: {hidden_size: 1000000000}",
        "layers": STUDY + "network: {num_layers: 1000, hidden_size: 60000}",
        "digits": STUDY + "seeds: " + "9" * 10**5,
        "date": STUDY + "about: 2001-99-99",
        "sexagesimal": STUDY + "seeds: " + "59:" * 10**4 + "59",
        "code": "!!python/object/apply:os.system ['touch executed']",
    }
    for name, text in studies.items():
        (folder / f"{name}.yaml").write_text(text)
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"epoch": pa.nulls(2 * 10**7, pa.null())}), folder / "rows.parquet")
    os.mkfifo(folder / "never.nc")
    os.mkfifo(folder / "never.npz")
    os.mkfifo(folder / "never.yaml")
    for name in ("never.yaml", "never.npz", "laughs.yaml"):
        (folder / f"link-{name}").symlink_to(folder / name)
    held = folder / "run"
    held.mkdir()
    (held / "config.yaml").write_text(STUDY)
    os.mkfifo(held / ".lock")


def trials(folder: Path) -> dict[str, Callable[[], object]]:
    """Return what is done with each file."""
    import lagreach
    from lagreach.cli.diagnose import load_data
    from lagreach.study.checkpoints import load_tensors
    from lagreach.study.config import read_config
    from lagreach.study.runner import run_study
    from lagreach.study.status import run_status
    from lagreach.study.store import RunDirectory
    from lagreach.study.tables import read_rows

    readers: dict[str, list[Callable[[Path], object]]] = {
        ".nc": [lagreach.load],
        ".npz": [load_data],
        ".pt": [load_data],
        ".safetensors": [load_data, load_tensors],
        ".yaml": [read_config],
        ".parquet": [read_rows],
    }
    actions: dict[str, Callable[[], object]] = {}
    for path in sorted(folder.iterdir()):
        for reader in readers.get(path.suffix, []):
            actions[f"{path.name} by {reader.__name__}"] = lambda reader=reader, path=path: reader(path)
    actions["status of a folder that never ends"] = lambda: run_status(folder / "run")
    actions["lock that never ends"] = lambda: RunDirectory(folder / "run").lock().__enter__()
    tasks = {
        "length": "task: {name: adding, length: 1000000000}",
        "input": "task: {name: multi_lag, input_size: 1000000000}",
    }
    for name, task in tasks.items():
        (folder / f"{name}.yml").write_text(f"{STUDY}{task}\ntraining: {{epochs: 1}}\nseeds: 1\n")
        actions[f"study with a task of a huge {name}"] = lambda name=name: run_study(
            read_config(folder / f"{name}.yml").at_scale("paper"), folder / f"out-{name}", show_progress=False
        )
    x, y = torch.zeros(1).expand(16, 10**9, 1), torch.zeros(16, 1)
    model = lagreach.GatedRNN("diag_gate", 1, 2, 1)
    actions["sequences of 1e9 steps: diagnose"] = lambda: lagreach.diagnose(model, (x, y))
    actions["sequences of 1e9 steps: lag_gradients"] = lambda: lagreach.lag_gradients(model, x, y)
    actions["sequences of 1e9 steps: batches"] = lambda: lagreach.diagnose(model, [(x, y)])
    return actions


def read_all(folder: Path) -> dict[str, list[str | None]]:
    """Build and read everything under a limit on memory; return how each trial ended and what went wrong."""
    build(folder)
    planned = trials(folder)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.chdir(folder)
    outcomes: dict[str, list[str | None]] = {}
    for name, trial in planned.items():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        outcome, problem = outcome_of(trial, seconds=60)
        growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        if growth > GROWTH:
            problem = f"took {growth / 2**20:.0f} MiB"
        if outcome == "succeeded" and "never ends" not in name:
            problem = "was not refused"
        outcomes[name] = [outcome, problem]
    if (folder / "executed").exists():
        outcomes["code"] = ["failed", "code in a study was executed"]
    return outcomes


def count_hostile() -> Count:
    """Read every hostile file once, in a process of its own."""
    count = Count(
        "hostile files and sizes, with 8 GiB of address space", "it is refused, with less than 1 GiB of memory"
    )
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.reliability.hostile", folder]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        count.add("failed", f"the process ended with {done.returncode}: {done.stderr[-500:]}")
        return count
    for name, (outcome, problem) in json.loads(done.stdout.splitlines()[-1]).items():
        count.add(outcome if problem is None else "failed", None if problem is None else f"{name}: {problem}")
    return count


if __name__ == "__main__":
    print(json.dumps(read_all(Path(sys.argv[1]))))
