"""A language model writes text, with random weights: python generate.py [--prompt N] [TOKENS]

The sizes of Llama 3.2 1B, in BF16. The first step reads the prompt, each later one makes a token:
the cache of keys and values grows. Needs transformers.
"""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
}


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--prompt", type=int, default=2048)
    options.add_argument("--device", default="cuda")
    options.add_argument("--layers", type=int, default=SIZES["num_hidden_layers"])
    options.add_argument("tokens", type=int, nargs="?", default=300)
    given = options.parse_args()
    torch.manual_seed(0)
    config = LlamaConfig(**(SIZES | {"num_hidden_layers": given.layers}), dtype="bfloat16")
    with torch.device(given.device):
        model = LlamaForCausalLM(config).bfloat16().eval()
        prompt = torch.randint(0, SIZES["vocab_size"], (1, given.prompt))
    wanted = given.tokens
    found = model.generate(prompt, max_new_tokens=wanted, min_new_tokens=wanted, do_sample=False)
    print(f"{found.shape[1] - given.prompt} tokens")


if __name__ == "__main__":
    main()
