"""A GPT as GPT-2 has it, in plain torch: learned positions, layer norm before each part, tied embedding.

The sizes of a *medium* model (24 layers, width 1024) give 354,871,296 parameters with the vocabulary of 50,304
(GPT-2's 50,257, rounded up to a multiple of 64 as trainers do).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model.

    Attributes:
        layers: Blocks.
        width: Of the residual stream; a multiple of ``heads``.
        heads: Of the attention.
        vocabulary: Different tokens.
        sequence: Longest sequence, in tokens.
    """

    layers: int
    width: int
    heads: int
    vocabulary: int
    sequence: int


class Block(nn.Module):
    """Causal attention and a perceptron of four times the width, each beside the residual stream.

    Args:
        width: Of the stream.
        heads: Of the attention.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.mixed = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, stream: Tensor) -> Tensor:
        """Add to the stream.

        Args:
            stream: Batch x sequence x width.

        Returns:
            The same shape.
        """
        batch, length, width = stream.shape
        parts: Tensor = self.queries_keys_values(self.norm1(stream))
        # (batch, length, 3, heads, each) -> 3 x (batch, heads, length, each)
        queries, keys, values = parts.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        stream = stream + self.mixed(attended.transpose(1, 2).reshape(batch, length, width))
        mixed: Tensor = stream + self.down(functional.gelu(self.up(self.norm2(stream)), approximate="tanh"))
        return mixed


class Gpt(nn.Module):
    """The whole model; gives the loss at once, so that a wrapper's hooks see one call.

    Args:
        sizes: Of the model.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.positions = nn.Embedding(sizes.sequence, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes.width, sizes.heads) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Predict each next token.

        Args:
            tokens: Batch x sequence.
            targets: The same shape: what should follow.

        Returns:
            Mean cross-entropy.
        """
        places = torch.arange(tokens.shape[1], device=tokens.device)
        stream: Tensor = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            stream = block(stream)
        logits = functional.linear(self.norm(stream), self.tokens.weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
