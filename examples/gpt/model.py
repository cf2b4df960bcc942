"""A GPT that knows of packed rows: its documents do not see one another."""

from __future__ import annotations

import torch
from torch import Tensor, nn

VOCABULARY = 257  # bytes, and what ends a document


class Block(nn.Module):
    """Attention within documents, then a layer of its own for each token."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.before_layer = nn.LayerNorm(width)
        self.layer = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return ``(rows, length, width)`` for the same.

        Args:
            x: The tokens of some rows.
            mask: ``(rows, 1, length, length) bool``: which token sees which.
        """
        rows, length, width = x.shape
        found = self.queries_keys_values(self.before_attention(x))
        found = found.view(rows, length, 3, self.heads, width // self.heads)
        queries, keys, values = found.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(queries, keys, values, mask)
        x = x + self.attended(attended.transpose(1, 2).reshape(rows, length, width))
        made: Tensor = x + self.layer(self.before_layer(x))
        return made


class Gpt(nn.Module):
    """A GPT whose rows hold several documents.

    Args:
        length: Tokens of a row.
        width: Numbers of a token, a multiple of 32.
        layers: Blocks.
    """

    def __init__(self, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, width // 32) for _ in range(layers))
        self.last = nn.LayerNorm(width)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor, positions: Tensor, documents: Tensor) -> Tensor:
        """Return ``(rows, length, vocabulary)``: how likely each token is to come next.

        Args:
            tokens: ``(rows, length)``.
            positions: ``(rows, length)``: of each token in its document.
            documents: ``(rows, length)``: which document of its row each token is of.
        """
        length = tokens.shape[1]
        is_earlier = torch.ones(length, length, dtype=torch.bool).tril()
        is_same = documents[:, :, None] == documents[:, None, :]
        mask = (is_same & is_earlier)[:, None]
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = block(x, mask)
        return nn.functional.linear(self.last(x), self.tokens.weight)
