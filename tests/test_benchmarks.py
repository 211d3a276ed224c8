"""The benchmarks refuse to time what is not right, write down what they should, and compare equal answers."""

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from benchmarks import harness
from benchmarks.harness import Case, Op, RefusedError, Timing, all_ops, main, measure, run_op, summarise, write

pytestmark = pytest.mark.thorough

OPS = all_ops()
JAX = ["jax.scan"] if importlib.util.find_spec("jax") else []
STEPS = ["lagreach", "reference", "eager", *JAX, "floor"]
PASSING = "def test_right():\n    assert 1 + 1 == 2\n"
FAILING = "def test_wrong():\n    assert 1 + 1 == 3\n"
SKIPPED = "import pytest\n@pytest.mark.slow\ndef test_slow():\n    pass\n"


@pytest.fixture
def fake(tmp_path):
    """Return a function that makes an op guarded by a test file with the given text, and the calls of its `run`."""
    calls = []

    def make(guard_text, failure=None):
        guard = tmp_path / "test_guard_of_fake.py"
        guard.write_text(guard_text)

        def run(case):
            calls.append(case.name)
            if failure is not None:
                raise failure
            return measure({"lagreach": lambda: sum(range(100)), "plain": lambda: sum(range(1000))}, case.repeats)

        cases = [Case("one", {"points": 100}, repeats=3, note="a note")]
        return Op("fake", "sums", "sum", (str(guard),), lambda size: cases, run), calls

    return make


@pytest.mark.parametrize("guard", [FAILING, SKIPPED, "import nothing_of_this_name\n"], ids=["fails", "empty", "broken"])
def test_nothing_is_timed_when_the_guard_does_not_pass(guard, fake, tmp_path, capsys):
    op, calls = fake(guard)
    out = tmp_path / "out"
    assert main(["fake", "--out", str(out)], ops={"fake": op}) == 1
    assert calls == []
    assert not out.exists()
    said = capsys.readouterr().out
    assert "refused to time fake" in said
    assert " us" not in said
    assert " ms" not in said


def test_an_old_result_survives_a_refusal(fake, tmp_path):
    op, _ = fake(FAILING)
    (tmp_path / "fake.json").write_text("old")
    assert main(["--out", str(tmp_path)], ops={"fake": op}) == 1
    assert (tmp_path / "fake.json").read_text() == "old"


def test_an_op_without_guards_is_refused(fake):
    op, calls = fake(PASSING)
    with pytest.raises(RefusedError, match="no tests guard it"):
        run_op(replace(op, guards=()))
    assert calls == []


def test_disagreeing_implementations_are_refused(fake, tmp_path):
    op, calls = fake(PASSING, failure=AssertionError("0.3 is not 0.4"))
    with pytest.raises(RefusedError, match=r"(?s)disagree.*0.3 is not 0.4"):
        run_op(op, time_case=harness.in_this_process)
    assert calls == ["one"]


def test_a_case_is_timed_in_a_process_of_its_own():
    op = OPS["training_step"]
    timings = harness.in_own_process(op, "tiny", 1)
    assert list(timings) == STEPS
    assert all(len(t.cpu) == len(t.wall) == 1 for t in timings.values())


def test_what_goes_wrong_in_that_process_is_told(monkeypatch):
    with pytest.raises(RuntimeError, match=r"(?s)exit code 1.*IndexError"):
        harness.in_own_process(OPS["training_step"], "tiny", 99)
    answer = subprocess.CompletedProcess([], 0, stdout='noise\n{"disagreement": "0.3 is not 0.4"}\n', stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    with pytest.raises(AssertionError, match=r"0.3 is not 0.4"):
        harness.in_own_process(OPS["training_step"], "tiny", 0)


def test_one_refusal_does_not_stop_the_others(fake, tmp_path, capsys):
    good, calls = fake(PASSING)
    bad = replace(good, name="bad", guards=(str(tmp_path / "test_there_is_no_such_file.py"),))
    assert main(["--out", str(tmp_path)], ops={"bad": bad, "fake": good}) == 1
    assert calls == ["one"]
    assert (tmp_path / "fake.json").exists()
    assert not (tmp_path / "bad.json").exists()
    assert "not timed, because not known to be right: bad" in capsys.readouterr().out


def test_the_record_has_everything(fake, tmp_path, capsys):
    op, _ = fake(PASSING)
    assert main(["fake", "--quick", "--out", str(tmp_path)], ops={"fake": op}) == 0
    assert [path.name for path in tmp_path.glob("*fake.*json*")] == ["fake.json"]
    record = json.loads((tmp_path / "fake.json").read_text())
    check_record(record, implementations=["lagreach", "plain"], repeats=3)
    assert record["op"] == "fake"
    assert record["size"] == "quick"
    assert record["cases"][0]["shape"] == {"points": 100}
    printed = capsys.readouterr().out
    assert record["machine"]["cpu"] in printed
    assert "plain" in printed
    assert "a note" in printed


def test_only_the_cases_that_were_asked_for(fake, tmp_path, capsys):
    op, calls = fake(PASSING)
    two = replace(op, cases=lambda size: [Case("one", {"points": 1}, 3), Case("two", {"points": 2}, 3)])
    assert main(["--only", "tw", "--out", str(tmp_path)], ops={"fake": two}) == 0
    assert calls == ["two"]
    assert [case["name"] for case in json.loads((tmp_path / "fake.json").read_text())["cases"]] == ["two"]
    assert main(["--only", "six", "--out", str(tmp_path)], ops={"fake": two}) == 1
    assert calls == ["two"]
    assert "no case has 'six' in its name; there are one, two" in capsys.readouterr().out
    assert main(["--only", "tw", "--only", "on", "--out", str(tmp_path)], ops={"fake": two}) == 0
    assert calls == ["two", "one", "two"]


def test_what_was_timed_survives_an_interruption(fake, tmp_path):
    op, calls = fake(PASSING)
    two = replace(op, cases=lambda size: [Case("one", {"points": 1}, 3), Case("two", {"points": 2}, 3)])

    def cut(case):
        if case.name == "two":
            raise KeyboardInterrupt
        return op.run(case)

    with pytest.raises(KeyboardInterrupt):
        main(["--out", str(tmp_path)], ops={"fake": replace(two, run=cut)})
    (left,) = tmp_path.glob("*.json")
    assert left.name == "fake_unfinished.json"
    assert [case["name"] for case in json.loads(left.read_text())["cases"]] == ["one"]
    assert main(["--out", str(tmp_path)], ops={"fake": two}) == 0
    assert [path.name for path in tmp_path.glob("*.json")] == ["fake.json"]
    assert calls == ["one", "one", "two"]


def check_record(record, implementations, repeats):
    assert record["schema"] == harness.SCHEMA
    assert record["threads"] == 1
    assert record["clock"] in harness.CLOCKS.values()
    assert "passed" in record["guards"]["outcome"]
    assert record["guards"]["tests"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", record["date"])
    assert set(record["commit"]) == {"id", "modified"}
    assert record["commit"]["id"] is None or re.fullmatch(r"[0-9a-f]{40}", record["commit"]["id"])
    assert set(record["machine"]) == {"cpu", "cores", "instructions", "system", "load_before", "load_after"}
    assert record["machine"]["cores"] >= 1
    assert set(record["versions"]) == {"python", "torch", "numpy", "scipy", "numba", "lagreach"}
    for case in record["cases"]:
        assert case["shape"]
        assert list(case["seconds"]) == implementations
        assert set(case["ratios"]) == set(implementations) - {record["baseline"]}
        for seconds in case["seconds"].values():
            assert len(seconds["cpu"]) == len(seconds["wall"]) == repeats
            assert 0 < seconds["best"] <= seconds["median"]


def test_medians_and_ratios_of_known_times():
    op = Op("x", "", "", ("t",), lambda size: [], lambda case: {}, clock="cpu")
    timings = {
        "lagreach": Timing(cpu=(1.0, 2.0, 4.0), wall=(2.0, 4.0, 8.0)),
        "plain": Timing(cpu=(3.0, 8.0, 8.0), wall=(3.0, 8.0, 8.0)),
    }
    summary = summarise(op, Case("c", {}, 3), timings)
    assert summary["seconds"]["lagreach"]["median"] == 2.0
    assert summary["seconds"]["lagreach"]["best"] == 1.0
    assert summary["seconds"]["lagreach"]["wall_over_cpu"] == 2.0
    assert summary["ratios"] == {"plain": {"median": 3.0, "quartiles": [2.5, 3.5]}}  # of 3, 4, 2: side by side
    by_wall = summarise(replace(op, clock="wall"), Case("c", {}, 3), timings)
    assert by_wall["ratios"]["plain"]["median"] == 1.5
    once = summarise(op, Case("c", {}, 1), {name: Timing(t.cpu[:1], t.wall[:1]) for name, t in timings.items()})
    assert once["ratios"]["plain"] == {"median": 3.0, "quartiles": [3.0, 3.0]}


def test_implementations_take_turns():
    order = []
    timings = measure({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=3, per={"b": 1e9})
    assert "".join(order) == "ab" + 3 * "aabb"  # once to warm up, then each twice, the second time on the clock
    assert {len(values) for t in timings.values() for values in (t.cpu, t.wall)} == {3}
    assert max(timings["b"].wall) < 1e-6


def test_what_takes_long_is_not_called_twice(monkeypatch):
    monkeypatch.setattr(harness, "LONG", 0.0)
    order = []
    measure({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=2)
    assert "".join(order) == "ab" + 2 * "ab"


def test_a_record_is_written_whole_or_not_at_all(tmp_path):
    write({"op": "x", "value": 1}, tmp_path)
    with pytest.raises(TypeError):
        write({"op": "x", "value": object()}, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    assert json.loads((tmp_path / "x.json").read_text()) == {"op": "x", "value": 1}


def test_unknown_names_are_named(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["nothing"], ops=OPS)
    assert (
        "unknown: nothing; there are diagnose, diagnosis_growth, first_order, forecast, growth, imports"
        in capsys.readouterr().err
    )


def test_quick_numbers_do_not_replace_full_ones():
    assert harness.QUICK_RESULTS != harness.RESULTS


@pytest.mark.parametrize("name", list(OPS))
def test_guards_exist_and_do_not_run_benchmarks(name):
    for guard in OPS[name].guards:
        path, _, function = guard.partition("::")
        text = (harness.ROOT / path).read_text()
        assert f"def {function}(" in text if function else "def test_" in text
        assert path != "tests/test_benchmarks.py"


@pytest.mark.parametrize("name", list(OPS))
def test_cases_say_what_they_are(name):
    for size in harness.SIZES:
        cases = OPS[name].cases(size)
        assert len({case.name for case in cases}) == len(cases) > 0
        for case in cases:
            assert case.repeats >= 1
            json.dumps(dict(case.shape))


@pytest.mark.parametrize("name", [name for name in OPS if name != "imports"])
def test_implementations_agree_and_are_timed(name):
    """`run` compares the answers before it times them, so this is also a test of every competitor."""
    op = OPS[name]
    some = ("diag_elman", "gru", "lstm")  # no matrix, three with a reset in between, two blocks of state
    for case in op.cases("tiny"):
        if case.shape.get("cell", "lstm") not in some or case.shape.get("function") == "first":
            continue
        timings = op.run(case)
        assert op.baseline in timings
        assert len(timings) >= 2
        assert all(len(t.cpu) == case.repeats for t in timings.values())


@pytest.mark.slow
@pytest.mark.parametrize("call", ["diagnose", "forecast"])
def test_growth_of_whole_calls_is_fitted(call):
    op = OPS["diagnosis_growth"]
    case = next(case for case in op.cases("tiny") if case.name == f"{call}, sequences")
    derived = op.derive(case, op.run(case))
    sizes = case.shape["values"]
    assert derived["exponent of time"] < 2
    assert all(derived[f"peak MiB at {size}"] > 0 for size in sizes)


def test_a_real_op_end_to_end(tmp_path, capsys):
    op = OPS["training_step"]
    one_guard = ("tests/theory/test_identity.py::test_mse[const_gate-False-1]",)
    small = replace(op, guards=one_guard, cases=lambda size: op.cases("tiny")[:2])
    assert main(["training_step", "--quick", "--out", str(tmp_path)], ops={"training_step": small}) == 0
    record = json.loads((tmp_path / "training_step.json").read_text())
    check_record(record, implementations=STEPS, repeats=1)
    assert "JAX" in record["cases"][0]["note"]
    assert [case["name"] for case in record["cases"]] == ["tiny const_gate", "tiny shared_gate"]
    assert record["guards"] == {"tests": list(one_guard), "outcome": record["guards"]["outcome"]}
    assert "tiny shared_gate" in capsys.readouterr().out


def test_the_command_lists_the_ops():
    command = [sys.executable, "-m", "benchmarks", "--help"]
    done = subprocess.run(command, cwd=harness.ROOT, capture_output=True, text=True, check=True)
    assert re.search(
        r"diagnose,\s+diagnosis_growth,\s+first_order,\s+forecast,\s+growth,\s+imports,\s+stable,\s+training_step,\s+transport",
        done.stdout,
    )


@pytest.mark.slow
def test_the_command_end_to_end(tmp_path):
    command = [sys.executable, "-m", "benchmarks", "imports", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=harness.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lagreach --help" in done.stdout
    names = ["import torch", "import lagreach after torch", "every public name after torch", "lagreach --help"]
    check_record(json.loads((tmp_path / "imports.json").read_text()), implementations=names, repeats=2)


@pytest.mark.parametrize("name", ["benchmarks.md", "forecast.md"])
def test_tables_of_speed_on_pages_are_the_stored_ones(name):
    from benchmarks.harness import ROOT
    from benchmarks.readme import with_table

    page = (ROOT / "docs" / name).read_text()
    assert with_table(page, name) == page
