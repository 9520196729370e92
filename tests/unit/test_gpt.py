"""The GPT of the workloads ``transformer`` and ``fsdp``."""

from __future__ import annotations

import math
import sys
import types

import pytest
import torch

from nccltune.workloads import fsdp, transformer
from nccltune.workloads.failure import Unsupported, WorkloadError
from nccltune.workloads.gpt import Gpt, Sizes
from nccltune.workloads.workload import Context, Numbers

CPU = torch.device("cpu")
SMALL = Sizes(layers=2, width=16, heads=2, vocabulary=50, sequence=8)


def context(**options: object) -> Context:
    return Context(0, 0, 2, "gloo", CPU, options, 0)


def test_the_default_on_a_gpu_is_gpt2_medium() -> None:
    sizes = {name: value for name, value in transformer._ON_GPU.items() if name != "batch_size"}
    with torch.device("meta"):
        model = Gpt(Sizes(**sizes))

    assert sum(each.numel() for each in model.parameters()) == 354_871_296


def test_nothing_is_seen_of_later_tokens_and_all_of_earlier_ones() -> None:
    torch.manual_seed(0)
    model, tokens = Gpt(SMALL), torch.randint(50, (1, 8))
    targets = torch.full((1, 8), -100)  # what cross-entropy leaves out
    targets[0, 4] = 7
    loss = model(tokens, targets)

    for place in range(8):
        other = tokens.clone()
        other[0, place] = (tokens[0, place] + 1) % 50
        assert bool(model(other, targets) == loss) == (place > 4), place


def test_it_begins_at_chance_and_learns_its_batch() -> None:
    torch.manual_seed(0)
    model, losses = Gpt(SMALL), list[float]()
    model.register_forward_hook(lambda _module, _inputs, loss: losses.append(loss.item()))
    chosen = {"batch_size": 2, "sequence": 8, "vocabulary": 50}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = transformer.training_step(optimizer, transformer.forward(context(), chosen, model, autocast=False))
    for _ in range(30):
        step()

    assert losses[0] == pytest.approx(math.log(50), rel=0.05)
    assert losses[-1] < losses[0] / 2


def test_ranks_have_equal_weights_and_different_tokens() -> None:
    seen: list[torch.Tensor] = []
    chosen = transformer.options(context())
    for rank in range(2):
        here = Context(rank, rank, 2, "gloo", CPU, {}, 5)
        model = transformer.network(here, chosen)
        model.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
        transformer.forward(here, chosen, model, autocast=False)()

    fresh = [transformer.network(context(), chosen), transformer.network(context(), chosen)]
    assert torch.equal(fresh[0].tokens.weight, fresh[1].tokens.weight)
    assert not torch.equal(*seen)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"width": 100, "heads": 3}, "100 is no multiple of 3 heads"),
        ({"sequence": 0}, "option 'sequence'"),
        ({"image_size": 4}, "option 'image_size' is unknown"),
    ],
)
def test_options_that_cannot_be_used_are_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        transformer.options(context(**options))


def test_throughput_counts_the_tokens_of_all_ranks() -> None:
    numbers = Numbers(step_us=500_000.0, call_us={}, world_size=4)

    assert transformer.metrics({"batch_size": 8, "sequence": 100})(numbers) == {"tokens_per_s": 6400.0}


def test_a_torch_without_fsdp2_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed.fsdp", types.ModuleType("torch.distributed.fsdp"))

    with pytest.raises(Unsupported, match="has no FSDP2"):
        fsdp.build(context())
