"""A language model decodes with a static cache: python decode.py [CONFIG] [STEPS] [--batch B...]

CONFIG is one of configs/models/, of a family that transformers knows; its weights are random, in
BF16. Prints the time of a prefill, and of a decode step, as one CUDA graph on a GPU.
Needs transformers. Two parts are replaced, unless ``--attention sdpa`` and ``--experts grouped_mm``
ask for those of transformers: its attention makes a mask in a CUDA graph, and for its sake a copy
of keys and values for each head of queries; on a GPU, the experts of some versions mask rows of
experts that another GPU has, also where there is no other GPU, three times a layer.
"""

import argparse
import json
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, StaticCache

MODELS = Path(__file__).resolve().parents[2] / "configs" / "models"
PREFILLS = 3


def attend(_module, query, key, value, _mask, scaling=None, **_more):
    """Heads share keys and values as they are. A prompt is causal; a decoded token sees all."""
    several = query.shape[2] > 1
    words = {"scale": scaling, "is_causal": several, "enable_gqa": True}
    return scaled_dot_product_attention(query, key, value, **words).transpose(1, 2), None


AttentionInterface.register("shared", attend)


def mix(experts, hidden, chosen, weights):
    """Tokens in the order of their experts, two grouped products, and each token's weighted sum."""
    sorted_experts, order = torch.sort(chosen.reshape(-1))
    ends = torch.histc(sorted_experts.int(), experts.num_experts, 0, experts.num_experts - 1)
    ends = torch.cumsum(ends, 0, dtype=torch.int32)
    rows = hidden[order // chosen.shape[-1]]
    gate, up = torch._grouped_mm(rows, experts.gate_up_proj.mT, offs=ends).chunk(2, -1)
    rows = torch._grouped_mm(experts.act_fn(gate) * up, experts.down_proj.mT, offs=ends)
    rows = rows * weights.reshape(-1)[order].unsqueeze(-1)
    places = torch.empty_like(order)
    places[order] = torch.arange(order.numel(), device=order.device)
    return rows[places].view(*chosen.shape, -1).sum(1)


def replace_experts():
    """Under the name of transformers' own: some versions refuse another."""
    try:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    except ImportError:  # an older version, without grouped products
        return
    ALL_EXPERTS_FUNCTIONS["grouped_mm"] = mix


def random_model(name, attention, device):
    path = Path(name) if Path(name).is_file() else MODELS / f"{name}.json"
    given = json.loads(path.read_text(encoding="utf-8"))
    config = AutoConfig.for_model(given.pop("model_type"), **given, dtype="bfloat16")
    with torch.device(device):
        torch.set_default_dtype(torch.bfloat16)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        torch.set_default_dtype(torch.float32)
    return model.eval()


class Decoder:
    """A model whose cache is full but for the token that it decodes."""

    def __init__(self, model, batch, context, device):
        self.model, words = model, model.config.vocab_size
        with torch.device(device):
            self.prompt = torch.randint(0, words, (batch, context - 1))
            self.token = torch.randint(0, words, (batch, 1))
            self.position = torch.tensor([context - 1])
        self.cache = StaticCache(config=model.config, max_cache_len=context)
        self.filled, self.lengths = context - 1, None
        self.on_gpu = device != "cpu"

    def prefill(self):
        """Only the last token has logits, as when a text is written."""
        self.cache.reset()
        self.model(self.prompt, past_key_values=self.cache, logits_to_keep=1)

    def step(self):
        """The same token each time: the cache has its length again afterwards."""
        position = {"cache_position": self.position, "position_ids": self.position[None]}
        self.model(self.token, past_key_values=self.cache, **position)
        if self.lengths is None:
            self.lengths = lengths_of(self.cache)
        self.lengths.fill_(self.filled)

    def graph(self):
        """The step as a function that launches a CUDA graph of it; on a CPU the step itself."""
        if not self.on_gpu:
            return self.step
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(3):
                self.step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay

    def time_ms(self, function, count):
        """The median of single calls, each waited for."""
        found = []
        for _ in range(count):
            self.wait()
            start = perf_counter()
            function()
            self.wait()
            found.append(1e3 * (perf_counter() - start))
        return median(found)

    def wait(self):
        if self.on_gpu:
            torch.cuda.synchronize()


def lengths_of(cache):
    """One tensor with what each layer of the cache counts in a tensor of its own."""
    lengths = torch.cat([layer.cumulative_length.reshape(1) for layer in cache.layers])
    for layer, length in zip(cache.layers, lengths, strict=True):
        layer.cumulative_length = length
    return lengths


@torch.inference_mode()
def main():
    options = argparse.ArgumentParser()
    options.add_argument("config", nargs="?", default="llama-3.1-8b")
    options.add_argument("steps", type=int, nargs="?", default=200)
    options.add_argument("--batch", type=int, nargs="+", default=[1])
    options.add_argument("--context", type=int, default=2048)
    options.add_argument("--device", default="cuda")
    options.add_argument("--attention", default="shared", choices=("shared", "sdpa"))
    options.add_argument("--experts", default="unmasked", choices=("unmasked", "grouped_mm"))
    given = options.parse_args()
    if given.experts == "unmasked" and given.device != "cpu":
        replace_experts()
    model = random_model(given.config, given.attention, given.device)
    print(f"{given.config}, context {given.context}")
    for batch in given.batch:
        decoder = Decoder(model, batch, given.context, given.device)
        decoder.prefill()
        prefill = decoder.time_ms(decoder.prefill, PREFILLS)
        step = decoder.time_ms(decoder.graph(), given.steps)
        print(f"batch {batch}: prefill {prefill:.2f} ms, decode {step:.3f} ms", flush=True)


if __name__ == "__main__":
    main()
