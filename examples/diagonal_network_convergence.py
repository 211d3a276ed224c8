"""How wide, how many steps, and what does memory cost? A diagonal network beside its guarantees."""

import torch

from lagreach.papers.cayci import Standing, bounds, descend, ntk, random_map, standing, symmetric_init
from lagreach.papers.cayci.transport_maps import target


def main(sequences: int = 24, steps: int = 200) -> Standing:
    """Train on a system that infinitely wide networks realise, and compare with what is promised."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sequences, 8, 2, generator=generator, dtype=torch.float64)
    x = x / x.norm(dim=-1, keepdim=True)
    system = random_map(2, nu=(0.5, 1.0), seed=1)
    y = target(x, system, alpha=0.5, nodes=101).value

    start = symmetric_init(256, 2, alpha=0.5, seed=0)
    eta = 1 / ntk.sharpness(start, x)
    print(f"{sequences} sequences, measured step size {eta:.3g}")
    print(descend(start, x, y, eta=eta, steps=steps))
    print(descend(start, x, y, eta=eta, steps=steps, rho=system.nu))
    settings = {"alpha": 0.5, "T": 8, "n": sequences, "nu": system.nu}
    print(bounds.theorem1("tanh", m=256, tau=steps, **settings))
    print(bounds.theorem2("tanh", error=0.1, **settings))
    position = standing(start, x, y, nu=system.nu)
    print(position)
    return position


if __name__ == "__main__":
    main()
