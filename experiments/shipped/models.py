"""The dense products C[m, n] = A[m, k] B[k, n] of public models, by tensor-parallel degree.

Sizes follow from the published `config.json` of each model (Hugging Face name in `source`): hidden_size,
num_attention_heads, num_key_value_heads, head_dim, intermediate_size, and the ranks of DeepSeek-V3's latent
attention. m is the number of tokens. Engines multiply queries, keys and values at once, and gate and up.
Tensor parallelism divides n of the products at the beginning of a layer's part (by columns) and k of those at
its end (by rows). Products of experts are grouped products and not here; nor is the vocabulary's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

DEGREES = (1, 2, 4, 8)


@dataclass(frozen=True)
class Product:
    """One product of a model, whole. `name` is that of the workloads of operators of several GPUs (L70Q).

    `divided`: the dimension that tensor parallelism divides; empty if each GPU computes the whole product.
    """

    name: str
    n: int
    k: int
    divided: str

    def at(self, degree: int) -> tuple[int, int]:
        """n and k of one GPU."""
        n = self.n // degree if self.divided == "n" else self.n
        return n, self.k // degree if self.divided == "k" else self.k


@dataclass(frozen=True)
class Model:
    """A public model. `usual`: the degree at which it is most often served, in bfloat16 on GPUs of 80 GB."""

    name: str
    source: str
    usual: int
    products: tuple[Product, ...]


def attention(name: str, hidden: int, heads: int, kv_heads: int, head_dim: int) -> tuple[Product, ...]:
    """Queries, keys and values; and the output."""
    queries = Product(f"{name}Q", (heads + 2 * kv_heads) * head_dim, hidden, "n")
    return queries, Product(f"{name}O", hidden, heads * head_dim, "k")


def gated(name: str, hidden: int, intermediate: int) -> tuple[Product, ...]:
    """Gate and up; and down."""
    return Product(f"{name}G", 2 * intermediate, hidden, "n"), Product(f"{name}D", hidden, intermediate, "k")


def dense(name: str, hidden: int, heads: int, kv_heads: int, intermediate: int) -> tuple[Product, ...]:
    """Both parts of a layer whose heads have 128 dimensions."""
    return *attention(name, hidden, heads, kv_heads, 128), *gated(name, hidden, intermediate)


def latent(
    name: str, hidden: int, heads: int, query_rank: int, kv_rank: int, rope: int, head_dim: int
) -> tuple[Product, ...]:
    """Latent attention: keys have `head_dim` dimensions and `rope` more, values `head_dim`."""
    return (
        Product(f"{name}A", query_rank + kv_rank + rope, hidden, ""),  # q_a_proj and kv_a_proj at once
        Product(f"{name}QB", heads * (head_dim + rope), query_rank, "n"),
        Product(f"{name}KVB", heads * 2 * head_dim, kv_rank, "n"),
        Product(f"{name}O", hidden, heads * head_dim, "k"),
    )


MODELS = (
    Model("Llama 3.1 8B", "meta-llama/Llama-3.1-8B", 1, dense("L8", 4096, 32, 8, 14336)),
    Model("Llama 3.1 70B", "meta-llama/Llama-3.1-70B", 4, dense("L70", 8192, 64, 8, 28672)),
    Model("Qwen3 8B", "Qwen/Qwen3-8B", 1, dense("Q8", 4096, 32, 8, 12288)),
    Model("Qwen3 32B", "Qwen/Qwen3-32B", 2, dense("Q32", 5120, 64, 8, 25600)),
    Model(
        "DeepSeek-V3",
        "deepseek-ai/DeepSeek-V3",
        8,
        (
            *latent("DS", 7168, 128, 1536, 512, 64, 128),
            *gated("DS", 7168, 18432),  # of the first three layers
            *gated("DSS", 7168, 2048),  # of the shared expert
        ),
    ),
    Model("gpt-oss-120b", "openai/gpt-oss-120b", 1, attention("GO", 2880, 64, 8, 64)),
    Model("gpt-oss-20b", "openai/gpt-oss-20b", 1, attention("GO", 2880, 64, 8, 64)),
    Model("Mixtral 8x7B", "mistralai/Mixtral-8x7B-v0.1", 2, attention("MX", 4096, 32, 8, 128)),
    Model("Llama 3.1 405B", "meta-llama/Llama-3.1-405B", 8, dense("L405", 16384, 128, 8, 53248)),
)


@dataclass(frozen=True)
class Use:
    """A product of a model at a degree."""

    model: str
    product: str
    degree: int

    def __str__(self) -> str:
        return f"{self.model} {self.product}, tensor-parallel {self.degree}"


@dataclass(frozen=True)
class Shape:
    """n and k of one GPU, and the models that have them."""

    n: int
    k: int
    uses: tuple[Use, ...]


def shapes(only: Sequence[str] = ()) -> list[Shape]:
    """All shapes, or those of these models, without duplicates.

    A model's usual degree comes first, then those next to it; and the models take turns, so that each part of
    the list has something of all.
    """
    queues = []
    for model in MODELS:
        if only and model.name not in only:
            continue
        degrees = sorted(DEGREES, key=lambda degree: abs(math.log2(degree / model.usual)))
        queues.append([(model, product, degree) for degree in degrees for product in model.products])
    found: dict[tuple[int, int], dict[Use, None]] = {}
    for turn in zip_longest(*queues):
        for one in turn:
            if one is not None:
                model, product, degree = one
                # a product that is not divided is listed at each degree
                found.setdefault(product.at(degree), {})[Use(model.name, product.name, degree)] = None
    return [Shape(n, k, tuple(uses)) for (n, k), uses in found.items()]
