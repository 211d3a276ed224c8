"""Corrected statements hold in simulation, over at least a hundred random starts; printed ones that fail are shown to."""

import json
import math

import numpy as np
import pytest
import torch

from lagreach.cells.activations import get_activation
from lagreach.errors import InputError
from lagreach.papers.cayci import Weights, bounds, descend, ntk, random_map, scaled_tanh, symmetric_init
from lagreach.papers.cayci.constants import certified_over
from lagreach.papers.cayci.derivatives import curvature
from lagreach.papers.cayci.linear import linearised
from lagreach.papers.cayci.streaming import outputs, risk
from lagreach.papers.cayci.transport_maps import TransportMap, target, transport
from tests.papers.cayci.cases import REFERENCE, unit_inputs

pytestmark = pytest.mark.usefixtures("_as_users_run_it")  # thousands of small steps: no run-time type checks
DRAWS = 100
TABLE = {"n": 100, "nu": (0.5, 1.0), "delta": 0.05, "d": 4, "error": 0.1}


@pytest.fixture(scope="module")
def problem():
    """A realizable system on five sequences, with exact targets."""
    generator = torch.Generator().manual_seed(5)
    x = unit_inputs(5, 4, 2, generator)
    v = random_map(2, nu=(0.5, 1.0), seed=generator)
    return x, v, {name: target(x, v, alpha=0.5, activation=name, nodes=201).value for name in ("tanh", "logistic")}


@pytest.mark.parametrize("case", REFERENCE["theorems"], ids=lambda c: f"T={c['T']} alpha={c['alpha']}")
def test_reference_requirements(case):
    """The reference used a cruder bound on one unit's share of the target: mu_0 (nu_u + nu_w)."""
    settings = {**TABLE, "alpha": case["alpha"], "T": case["T"]}
    cruder = 1.5 * bounds.mu0(case["alpha"], case["T"])
    requirement = bounds.theorem1_requirement("tanh", **settings, y_max=cruder)
    assert requirement.m == pytest.approx(case["thm1_cert"]["m"], rel=3e-4)
    assert requirement.tau == math.ceil(case["thm1_cert"]["tau"])
    requirement = bounds.theorem1_requirement("tanh", **settings, form="printed")
    assert (requirement.m, requirement.tau) == pytest.approx(
        (case["thm1_printed"]["m"], case["thm1_printed"]["tau"]), rel=1e-5
    )
    requirement = bounds.theorem2("tanh", **settings, y_max=cruder)
    # the reference searched gaps on a coarser grid
    assert requirement.m == pytest.approx(case["thm2_cert"]["m"], rel=3e-3)
    assert requirement.m <= case["thm2_cert"]["m"] + 2
    assert requirement.tau == pytest.approx(case["thm2_cert"]["tau"], rel=3e-3)
    requirement = bounds.theorem2("tanh", **settings, form="printed")
    assert (requirement.m, requirement.tau) == pytest.approx(
        (case["thm2_printed"]["m"], case["thm2_printed"]["tau"]), rel=1e-4
    )
    assert requirement.eta == pytest.approx(case["thm2_printed"]["eta"], rel=1e-12)


def test_reference_terms_of_theorem_1():
    settings = {"alpha": 0.3, "m": 1024, "T": 10, "n": 32, "tau": 1000, "nu": (0.5, 1.0), "delta": 0.05}
    bound = bounds.theorem1("tanh", **settings, y_max=1.5 * bounds.mu0(0.3, 10))
    assert bound.quantities["L"] == pytest.approx(2.06639, rel=1e-5)
    assert bound.quantities["beta"] == pytest.approx(10.0291, rel=1e-5)
    assert bound.quantities["err"] == pytest.approx(44.5206, rel=1e-5)
    assert bound.terms["optimisation"] == pytest.approx(0.106749, rel=1e-5)
    assert bound.terms["width"] == pytest.approx(77.425, rel=1e-4)
    bound = bounds.theorem1("tanh", **settings, d=2, form="printed")
    assert list(bound.terms.values()) == pytest.approx([138.13, 337.53], rel=1e-4)


def test_proposition_3_holds_and_is_not_far_off(problem):
    x, v, values = problem
    m, delta = 128, 0.05
    for name, y in values.items():
        bound = bounds.proposition3(name, alpha=0.5, m=m, T=4, nu=v.nu, n=5, delta=delta).value
        apart = []
        for seed in range(DRAWS):
            start = symmetric_init(m, 2, 0.5, seed)
            apart.append(float((linearised(start, transport(start, v), x, name) - y).abs().max()))
        assert max(apart) <= bound
        assert max(apart) > bound / 20


def test_the_printed_proposition_3_fails_where_the_logarithm_counts():
    """One independent unit that says +-1 for a target of zero is never within the printed distance."""
    nearly_linear = scaled_tanh(100.0, 0.01)
    v = TransportMap(lambda w, u: (torch.zeros_like(w), u.sign()), 0.0, 1.0)
    x = torch.ones(1, 1, 1, dtype=torch.float64)
    settings = {"alpha": 0.5, "m": 2, "T": 1, "nu": (0.0, 1.0), "delta": 0.9}
    wrong, right = (
        bounds.proposition3(nearly_linear, **settings, form=form).value for form in ("printed", "corrected")
    )
    exact = float(target(x, v, alpha=0.5, activation=nearly_linear).value)
    assert abs(exact) < 1e-15
    for seed in range(DRAWS):
        start = symmetric_init(2, 1, 0.5, seed)
        apart = abs(float(linearised(start, transport(start, v), x, nearly_linear)))
        assert wrong < apart <= right


def test_proposition_4_holds_and_is_not_far_off(problem):
    x = problem[0]
    for name in ("tanh", "logistic", "gaussian"):
        nearest = math.inf
        for seed in range(DRAWS):
            generator = torch.Generator().manual_seed(seed)
            start = symmetric_init(8, 2, 0.5, generator)
            step = (1.5 if seed % 2 else 0.3) * torch.randn(8, 3, generator=generator, dtype=torch.float64) / 8**0.5
            moved = Weights(start.W + step[:, 0], start.U + step[:, 1:], start.c)
            bound = bounds.proposition4(
                name, alpha=0.5, m=8, T=4, d=2, moved=float(step.square().sum()),
                moved_w=8**0.5 * float(step[:, 0].abs().max()),
            ).value  # fmt: skip
            apart = float((outputs(moved, x, name) - linearised(start, moved, x, name)).abs().max())
            assert apart <= bound
            nearest = min(nearest, bound / apart)
        assert nearest < 500


def test_proposition_5_holds(problem):
    x, v, values = problem
    for name, y in values.items():
        bound = bounds.proposition5(name, alpha=0.5, m=64, T=4, n=5, nu=v.nu)
        assert bound.value == sum(bound.terms.values())
        for seed in range(DRAWS):
            start = symmetric_init(64, 2, 0.5, seed)
            assert (outputs(transport(start, v), x, name) - y).abs().max() <= bound.value


def test_proposition_6_holds_and_the_printed_one_fails(problem):
    x, v, values = problem
    for name, y in values.items():
        f_max, y_max = bounds.proposition6(name, alpha=0.5, m=32, T=4, nu=v.nu, rho=(1.0, 2.0))
        assert y.abs().max() <= y_max
        for seed in range(DRAWS):
            start = symmetric_init(32, 2, 0.5, seed)
            extreme = TransportMap(lambda w, u: (w.sign(), 2 * u / u.norm(dim=1, keepdim=True)), 1.0, 2.0)
            assert outputs(transport(start, extreme), x, name).abs().max() <= f_max
    # logistic, one step, every unit pushed along the input
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    push = TransportMap(lambda w, u: (torch.zeros_like(w), torch.ones_like(u)), 0.0, 1.0)
    start = symmetric_init(4096, 1, 0.5, 0)
    output = float(outputs(transport(start, push), one, "logistic"))
    wrong, right = (
        bounds.proposition6("logistic", alpha=0.5, m=4096, T=1, nu=(0.0, 1.0), form=form)[0]
        for form in ("printed", "corrected")
    )
    assert output == pytest.approx(0.206, abs=0.003)
    assert wrong == pytest.approx(0.125)
    assert wrong < output <= right


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "steps"), [("tanh", 15), ("logistic", 15)])
def test_theorem_1_and_corollary_1_hold_on_every_run(problem, name, steps):
    x, v, values = problem
    y, n = values[name], len(x)
    for seed in range(DRAWS):
        m = (16, 64, 256)[seed % 3]
        settings = {"alpha": 0.5, "m": m, "T": 4, "n": n, "tau": steps, "nu": v.nu}
        bound = bounds.theorem1(name, **settings)
        start = symmetric_init(m, 2, 0.5, seed)
        run = descend(start, x, y, name, eta=bound.quantities["eta"], steps=steps, rho=v.nu)
        assert run.mean_risk <= bound.value
        corollary = bounds.corollary1(name, **settings)
        average = risk(outputs(run.average, x, name), y)
        assert average <= corollary.value
        # the step behind the corollary, from the measured mean
        apart = 2 * bound.quantities["beta"] * (v.nu_w**2 + v.nu_u**2) / (2 * math.sqrt(m))
        assert math.sqrt(average) <= math.sqrt(run.mean_risk) + apart
        steepness = 4 * bound.quantities["L"] ** 2
        assert (run.gradient_norms**2 <= steepness * run.risks).all()


@pytest.mark.parametrize("seed", range(4))
def test_theorem_1_where_it_says_something(seed):
    """Wide and short, with small norms: the bound lies below the risk at the start."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.ones(4, 1, 1, dtype=torch.float64)
    push = TransportMap(lambda w, u: (torch.zeros_like(w), torch.ones_like(u)), 0.0, 1.0)
    y = target(x, push, alpha=0.3).value
    m, steps = 1 << 14, 60
    bound = bounds.theorem1("tanh", alpha=0.3, m=m, T=1, n=4, tau=steps, nu=(0.0, 1.0))
    start = symmetric_init(m, 1, 0.3, generator)
    goal = transport(start, push)
    run = descend(start, x, y, eta=bound.quantities["eta"], steps=steps, rho=(0.0, 1.0), reference=goal)
    assert run.mean_risk <= bound.value < run.risks[0]
    assert not bound.vacuous
    # the distance to the transported weights falls as long as the proof says it must
    far = np.sqrt(run.risks) > 2 * bound.quantities["err"] / m**0.5
    assert far[0]
    falls = np.diff(run.distances) <= 0
    assert falls[far[:-1]].all()
    assert run.distances[0] <= 1.0 + 1e-12


def test_the_gradient_is_bounded_by_the_measured_sharpness(problem):
    x, _, values = problem
    for seed in range(DRAWS // 4):
        weights = symmetric_init(16, 2, 0.5, seed)
        for _ in range(4):
            run = descend(weights, x, values["tanh"], eta=0.5, steps=1)
            steep = ntk.sharpness(weights, x)
            constant = float(certified_over(get_activation("tanh"), weights.W.abs().max().numpy(), 4, 1.0)["L"])
            assert run.gradient_norms[0] ** 2 <= steep * run.risks[0] * (1 + 1e-12)
            assert steep <= 4 * constant**2
            weights = run.weights


@pytest.mark.parametrize("T", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_theorem_2_end_to_end(T, seed):
    """At its own width and step the risk gets there in time, and no unit moves farther than promised."""
    generator = torch.Generator().manual_seed(seed)
    x = unit_inputs(4, T, 1, generator)
    v = random_map(1, nu=(0.3, 0.6), seed=generator)
    y = target(x, v, alpha=0.3).value
    error = 0.3 * risk(torch.zeros_like(y), y)
    requirement = bounds.theorem2("tanh", error=error, alpha=0.3, T=T, n=4, nu=v.nu)
    start = symmetric_init(int(requirement.m), 1, 0.3, generator)
    run = descend(start, x, y, eta=requirement.eta, steps=int(requirement.tau), stop=error)
    assert run.reached is not None
    assert 0 < run.reached < requirement.tau
    assert np.hypot(run.moved_w, run.moved_u).max() <= requirement.quantities["lam"]


def test_theorem_2_chooses_the_best_gap():
    settings = {"error": 0.1, "alpha": 0.3, "T": 5, "n": 10, "nu": (0.5, 1.0)}
    best = bounds.theorem2("tanh", **settings)
    others = [bounds.theorem2("tanh", gap=gap, **settings).m for gap in np.geomspace(1e-3, 1.0, 200)]
    assert best.m <= min(others) + 2
    assert best.m > 0.98 * min(others)


def test_printed_corollary_loses_a_square():
    """The last term bounds |F - F_Lin| where its square, summed over steps, is needed."""
    m = 1 << 18
    start = symmetric_init(m, 1, 0.3, 0)
    x = torch.ones(1, 1, 1, dtype=torch.float64)
    # only units whose curvature works in one direction move, so that nothing cancels
    bends_up = start.c * curvature(get_activation("tanh"), start.U[:, 0]) > 0
    away = Weights(start.W, start.U + 0.3 * bends_up[:, None], start.c)
    moved = (0.3 * math.sqrt(m)) ** 2
    c = bounds.printed("tanh", alpha=0.3, a=0.3, T=1, d=1)
    printed = 2 / m * (c.Lam**2 * get_activation("tanh").sigma_2 + c.gam) * moved
    apart = float((outputs(away, x) - linearised(start, away, x)).square().sum())
    assert printed == pytest.approx(2.9, abs=0.1)
    assert apart > 5 * printed
    assert apart <= bounds.proposition4("tanh", alpha=0.3, m=m, T=1, moved=moved, moved_w=0.0).value ** 2


def test_rates_of_the_corrected_theorems():
    settings = {"alpha": 0.3, "T": 3, "n": 10, "nu": (0.5, 1.0)}
    small, large = (bounds.theorem1("tanh", m=10**10, tau=tau, **settings) for tau in (100, 400))
    assert small.terms["optimisation"] / large.terms["optimisation"] == pytest.approx(4)
    narrow, wide = (bounds.theorem1("tanh", m=m, tau=1, **settings) for m in (10**10, 4 * 10**10))
    assert narrow.terms["width"] / wide.terms["width"] == pytest.approx(4, rel=1e-4)
    one, two = (bounds.theorem2("tanh", error=e, **settings) for e in (1e-4, 1e-5))
    assert two.m / one.m == pytest.approx(10, rel=0.02)
    assert two.tau / one.tau == pytest.approx(10, rel=0.02)


def test_vacuous_bounds_say_so():
    short = {"alpha": 1.5, "T": 40, "n": 10, "nu": (0.5, 1.0)}
    bound = bounds.theorem1("tanh", m=100, tau=100, **short)
    assert bound.vacuous
    assert "vacuous" in str(bound)
    assert "exp(T)" in str(bound)
    endless = {**short, "T": 5000}
    for form in ("corrected", "printed"):
        assert bounds.theorem1("tanh", m=100, tau=100, form=form, **endless).value == math.inf
        assert bounds.corollary1("tanh", m=100, tau=100, form=form, **endless).value == math.inf
        for need in (bounds.theorem2, bounds.theorem1_requirement):
            asked = need("tanh", error=0.1, form=form, **endless)
            assert asked.vacuous
            assert asked.m == asked.tau == math.inf
            assert "vacuous" in str(asked)
            assert "exp(T)" in str(asked)
            json.dumps(asked.to_dict(), allow_nan=False)
    json.dumps(bounds.theorem1("tanh", m=100, tau=100, **endless).to_dict(), allow_nan=False)


def test_bad_input_is_told():
    good = {"alpha": 0.5, "m": 8, "T": 3, "n": 4, "tau": 10, "nu": (0.5, 1.0)}
    for change, said in [
        ({"m": 7}, "even width"),
        ({"nu": (-0.5, 1.0)}, "nonnegative"),
        ({"rho": (0.1, 1.0)}, "leave room"),
        ({"delta": 0.0}, "probability"),
        ({"delta": 1.5}, "probability"),
        ({"eta": 10.0}, "too long"),
        ({"eta": -1.0}, "eta must be positive"),
        ({"tau": 0}, "tau must be positive"),
        ({"T": 0}, "counts the steps"),
        ({"form": "guessed"}, "unknown form"),
    ]:
        with pytest.raises(InputError, match=said):
            bounds.theorem1("tanh", **{**good, **change})
    need = {"alpha": 0.5, "T": 3, "n": 4, "nu": (0.5, 1.0), "error": 0.1}
    for change, said in [
        ({"error": 0.0}, "error must be positive"),
        ({"gap": -1.0}, "gap must be positive"),
        ({"form": "guessed"}, "unknown form"),
        ({"delta": 2.0}, "probability"),
    ]:
        with pytest.raises(InputError, match=said):
            bounds.theorem2("tanh", **{**need, **change})
    with pytest.raises(InputError, match="share"):
        bounds.theorem1_requirement("tanh", **need, share=1.0)
