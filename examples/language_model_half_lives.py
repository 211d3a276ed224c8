"""Half-lives of five families of language models at their start: tiny models from configurations, random weights."""

from collections.abc import Iterator
from importlib.util import find_spec

import torch

import lagreach


def models() -> Iterator[tuple[str, torch.nn.Module]]:
    """Two layers each, a vocabulary of 32 tokens."""
    import transformers as hf

    hf.logging.set_verbosity_error()
    small = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2}
    heads = {"num_heads": 4, "head_dim": 8, "state_size": 8, "n_groups": 1, "chunk_size": 16}
    griffin = {
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "lru_width": 16,
        "attention_window_size": 8,
        "pad_token_id": 0,
    }
    yield "Mamba", hf.MambaForCausalLM(hf.MambaConfig(state_size=8, **small))
    yield "Mamba-2", hf.Mamba2ForCausalLM(hf.Mamba2Config(**small, **heads))
    yield "RecurrentGemma", hf.RecurrentGemmaForCausalLM(hf.RecurrentGemmaConfig(**small, **griffin))
    yield "RWKV", hf.RwkvForCausalLM(hf.RwkvConfig(context_length=64, **small))
    yield "xLSTM", hf.xLSTMForCausalLM(hf.xLSTMConfig(num_heads=4, chunk_size=16, **small))


def main() -> None:
    """Print the half-lives, and for one model which lags its second layer could learn from 64 sequences."""
    if find_spec("transformers") is None:
        print(
            "skipped: this example runs on sequences with transformers installed (pip install lagreach[transformers])"
        )
        return
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    tokens = torch.randint(0, 32, (64, 24), generator=generator)
    for name, model in models():
        print(f"{name}\n{lagreach.retention(model, tokens[:8])}\n")
        if name == "RecurrentGemma":
            targets = torch.nn.functional.pad(tokens[:, :-5], (5, 0))
            options = {"loss": "cross_entropy", "lags": [0, 2, 5, 9], "lags_of": "layers"}
            print(lagreach.diagnose(model, (tokens, targets), **options), "\n")


if __name__ == "__main__":
    main()
