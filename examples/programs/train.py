"""A training step of a small language model, in two versions: python train.py [--compiled] [STEPS]

Four layers of 2048, 16 heads, 4 × 2048 tokens, a vocabulary of 32,000, BF16, fused AdamW.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  as everybody calls it

WIDTH, HEADS, LAYERS, VOCABULARY = 2048, 16, 4, 32_000


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        shape = (batch, tokens, 3, HEADS, WIDTH // HEADS)
        q, k, v = self.qkv(self.norm1(x)).view(shape).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Training:
    """A model, its optimizer and one batch."""

    def __init__(self, *, compiled: bool = False) -> None:
        torch.manual_seed(0)
        layers = [nn.Embedding(VOCABULARY, WIDTH), *(Block() for _ in range(LAYERS))]
        layers += [nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)]
        self.model = nn.Sequential(*layers).cuda().bfloat16()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.tokens = torch.randint(0, VOCABULARY, (4, 2048), device="cuda")
        self.loss = torch.compile(self._loss) if compiled else self._loss

    def _loss(self) -> torch.Tensor:
        logits = self.model(self.tokens).view(-1, VOCABULARY)
        return F.cross_entropy(logits.float(), self.tokens.view(-1))

    def step(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.optimizer.step()
        return loss


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--compiled", action="store_true")
    options.add_argument("steps", type=int, nargs="?", default=200)
    given = options.parse_args()
    training = Training(compiled=given.compiled)
    for i in range(given.steps):
        loss = training.step()
        if i % 50 == 0:
            print(f"step {i}: {loss.item():.3f}", flush=True)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
