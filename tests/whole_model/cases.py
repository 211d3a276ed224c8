"""Tiny models of many kinds, as their users write them, in double precision and evaluation mode."""

import torch
from torch import nn
from torch.nn import functional

SEQ, TIME, INPUT, TOKENS = 4, 9, 3, 11


class CausalTransformer(nn.Module):
    def __init__(self, inputs=INPUT, outputs=1, width=8, tokens=0, time=64, layers=1):
        super().__init__()
        self.read = nn.Embedding(tokens, width) if tokens else nn.Linear(inputs, width)
        self.place = nn.Parameter(torch.randn(time, width) / 2)
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.readout = nn.Linear(width, outputs)

    def forward(self, x):
        time = x.shape[1]
        mask = torch.full((time, time), -torch.inf, dtype=self.place.dtype).triu(1)
        return self.readout(self.layers(self.read(x) + self.place[:time], mask=mask))


class Interrupting(CausalTransformer):
    """Counts its runs, and interrupts, as Ctrl-C does, at one of them if asked to."""

    runs, stop = 0, None

    def forward(self, x):
        self.runs += 1
        if self.runs == self.stop:
            raise KeyboardInterrupt
        return super().forward(x)


class BidirectionalTransformer(CausalTransformer):
    def forward(self, x):
        return self.readout(self.layers(self.read(x) + self.place[: x.shape[1]]))


class PaddedConvolutions(nn.Module):
    """A temporal convolution that pads on both sides and cuts off what looks ahead."""

    def __init__(self, inputs=INPUT, width=6):
        super().__init__()
        self.first = nn.Conv1d(inputs, width, 3, padding=2)
        self.second = nn.Conv1d(width, width, 2, padding=2, dilation=2)
        self.readout = nn.Linear(width, 1)

    def forward(self, x):
        hidden = self.first(x.transpose(1, 2))[..., : x.shape[1]].tanh()
        hidden = self.second(hidden)[..., : x.shape[1]].tanh()
        return self.readout(hidden.transpose(1, 2))


class LeftPaddedConvolution(nn.Module):
    """Causal by zeros in front, and with a dilation in the layer that reads the input."""

    def __init__(self, inputs=INPUT, width=6):
        super().__init__()
        self.first = nn.Conv1d(inputs, width, 3, dilation=2)
        self.readout = nn.Linear(width, 1)

    def forward(self, x):
        hidden = self.first(functional.pad(x.transpose(1, 2), (4, 0))).tanh()
        return self.readout(hidden.cumsum(-1).tanh().transpose(1, 2))


class SameConvolution(nn.Module):
    """Looks ahead as far as back."""

    def __init__(self, inputs=INPUT, width=6):
        super().__init__()
        self.first = nn.Conv1d(inputs, width, 5, padding="same")
        self.readout = nn.Linear(width, 1)

    def forward(self, x):
        return self.readout(self.first(x.transpose(1, 2)).tanh().transpose(1, 2))


class Recurrent(nn.Module):
    def __init__(self, inputs=INPUT, width=5):
        super().__init__()
        self.layer = nn.LSTM(inputs, width, batch_first=True)
        self.readout = nn.Linear(width, 1)

    def forward(self, x):
        return self.readout(self.layer(x)[0])


class ProjectedTimeFirst(nn.Module):
    """A linear layer in front of a layer that wants steps first."""

    def __init__(self, inputs=INPUT, width=5):
        super().__init__()
        self.read = nn.Linear(inputs, width)
        self.layer = nn.GRU(width, width)
        self.readout = nn.Linear(width, 1)

    def forward(self, x):
        return self.readout(self.layer(self.read(x.transpose(0, 1)).tanh())[0]).transpose(0, 1)


class Flat(nn.Module):
    """Reads all steps of all sequences as rows of one matrix."""

    def __init__(self, inputs=INPUT, width=5):
        super().__init__()
        self.read = nn.Linear(inputs, width)
        self.readout = nn.Linear(width, 1)

    def forward(self, x):
        hidden = self.read(x.reshape(-1, x.shape[-1])).view(*x.shape[:2], -1)
        return self.readout(hidden.cumsum(1).tanh())


class StepByStep(nn.Module):
    """Calls its input layer once for each step."""

    def __init__(self, inputs=INPUT, width=5):
        super().__init__()
        self.read = nn.Linear(inputs, width)
        self.carry = nn.Linear(width, width)
        self.readout = nn.Linear(width, 1)

    def forward(self, x):
        state, states = torch.zeros(len(x), self.carry.in_features).to(x), []
        for step in range(x.shape[1]):
            state = (self.read(x[:, step]) + self.carry(state)).tanh()
            states.append(state)
        return self.readout(torch.stack(states, dim=1))


class TwoReaders(nn.Module):
    """Keys and values both read the input."""

    def __init__(self, inputs=INPUT, width=5):
        super().__init__()
        self.keys, self.values = nn.Linear(inputs, width), nn.Linear(inputs, width)
        self.readout = nn.Linear(width, 1)

    def forward(self, x):
        return self.readout((self.keys(x).sigmoid() * self.values(x)).cumsum(1).tanh())


class Skip(nn.Module):
    """The input also goes round the layer that reads it."""

    def __init__(self, inputs=INPUT, width=5):
        super().__init__()
        self.read = nn.Linear(inputs, width)
        self.readout = nn.Linear(width, 1)

    def forward(self, x):
        return self.readout(self.read(x).cumsum(1).tanh()) + x.cumsum(1)[..., :1].sin()


class EncoderDecoder(nn.Module):
    """Attention of a decoder's steps over the encoder's; the target's own past is the second input."""

    def __init__(self, inputs=INPUT, width=8):
        super().__init__()
        self.source, self.target = nn.Linear(inputs, width), nn.Linear(1, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.attend = nn.MultiheadAttention(width, 2, batch_first=True)
        self.readout = nn.Linear(width, 1)

    def forward(self, source, target):
        kept = self.encoder(self.source(source))[0]
        asked = self.decoder(self.target(target))[0]
        return self.readout(self.attend(asked, kept, kept)[0] + asked)


class ChannelsApart(nn.Module):
    """A forecaster that folds channels into the batch."""

    def __init__(self, width=5):
        super().__init__()
        self.layer = nn.LSTM(1, width, batch_first=True)
        self.readout = nn.Linear(width, 1)

    def forward(self, x):
        sequences, time, channels = x.shape
        folded = x.transpose(1, 2).reshape(sequences * channels, time, 1)
        return self.readout(self.layer(folded)[0]).view(sequences, channels, time).transpose(1, 2)


class Pooled(nn.Module):
    """One output for a whole sequence."""

    def __init__(self, inputs=INPUT, width=6):
        super().__init__()
        self.read = nn.Linear(inputs, width)
        self.readout = nn.Linear(width, 2)

    def forward(self, x):
        hidden = self.read(x).tanh()
        return self.readout((hidden.softmax(1) * hidden.cumsum(1)).sum(1))


class OneHot(nn.Module):
    """Tokens that no embedding reads."""

    def __init__(self, width=5):
        super().__init__()
        self.read = nn.Linear(TOKENS, width)
        self.readout = nn.Linear(width, TOKENS)

    def forward(self, x):
        return self.readout(self.read(functional.one_hot(x, TOKENS).to(self.read.weight)).cumsum(1).tanh())


class MovingPicture(nn.Module):
    """A convolution over the picture at each step, and a recurrence over them (a ConvLSTM in small)."""

    def __init__(self):
        super().__init__()
        self.look = nn.Conv2d(2 + 3, 3, 3, padding=1)
        self.readout = nn.Conv2d(3, 1, 1)

    def forward(self, x):
        state, outputs = x.new_zeros(len(x), 3, *x.shape[3:]), []
        for step in range(x.shape[1]):
            state = self.look(torch.cat((x[:, step], state), 1)).tanh()
            outputs.append(self.readout(state))
        return torch.stack(outputs, dim=1)


def numbers(shape=(SEQ, TIME, INPUT), seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return x, torch.randn(shape[0], shape[1], 1, generator=generator, dtype=torch.float64)


def tokens(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, TOKENS, (SEQ, TIME), generator=generator) for _ in range(2))


def made(cls, seed=0, **options):
    torch.manual_seed(seed)
    return cls(**options).double().eval()


def hugging_face(name, seed=0, vocabulary=TOKENS, **more):
    """A tiny causal language model of the transformers library, never downloaded."""
    import transformers

    small = {"vocab_size": vocabulary, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
    width = {"hidden_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16}
    options = {
        "GPT2LMHeadModel": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
        "LlamaForCausalLM": width | heads,
        "MambaForCausalLM": width | {"state_size": 4},
        "Mamba2ForCausalLM": width | {"state_size": 4, "num_heads": 4, "head_dim": 8, "n_groups": 1, "chunk_size": 8},
        "FalconMambaForCausalLM": width | {"state_size": 4},
        "RwkvForCausalLM": width | {"attention_hidden_size": 16, "intermediate_size": 16, "context_length": 64},
        "RecurrentGemmaForCausalLM": width
        | {"num_attention_heads": 2, "lru_width": 16, "intermediate_size": 16, "attention_window_size": 4}
        | {"num_hidden_layers": 3, "block_types": ["recurrent", "recurrent", "attention"]},
        "xLSTMForCausalLM": width | {"num_blocks": 2, "num_heads": 2, "embedding_dim": 16, "chunk_size": 8},
        "Qwen3NextForCausalLM": width
        | heads
        | {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
        | {"linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 4, "linear_value_head_dim": 4}
        | {"head_dim": 8},
        "BambaForCausalLM": width
        | heads
        | {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_chunk_size": 8, "attn_layer_indices": [1]},
        "JambaForCausalLM": width
        | heads
        | {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1}
        | {
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "mamba_d_state": 4,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
        "FalconH1ForCausalLM": width
        | heads
        | {"head_dim": 8, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1}
        | {"mamba_d_state": 4, "mamba_chunk_size": 8, "mamba_rms_norm": False},
        "MiniMaxForCausalLM": width
        | heads
        | {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "block_size": 4},
        "Qwen3_5ForCausalLM": width
        | heads
        | {"head_dim": 8, "linear_num_value_heads": 2, "linear_num_key_heads": 2}
        | {"linear_key_head_dim": 4, "linear_value_head_dim": 4},
    }[name]
    config = getattr(transformers, name).config_class(**(small | options | more))
    torch.manual_seed(seed)
    return getattr(transformers, name)(config).double().eval()
