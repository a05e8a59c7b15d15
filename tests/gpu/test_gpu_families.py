"""On a GPU both families give what transformers gives there: scores, and in bf16 as near as bf16 is to fp32."""

from pathlib import Path
from typing import Any

import pytest
import torch

import plain
from arpo.bench.sample import plain_model
from arpo.engines.base import Prompt
from arpo.images import decode
from arpo.model.checkpoint import FAMILIES, load_checkpoint
from arpo.model.images import resized
from arpo.model.layout import lay_out
from arpo.model.qwen import banned_ids
from arpo.model.recompute import Recompute
from tiny_model import make_decided

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_and_gradients_are_those_of_transformers(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    folder = make_decided(tmp_path, 0, family)
    tiny = load_checkpoint(folder, "cuda", dtype)
    exact = load_checkpoint(folder, "cuda", torch.float32)
    prompt = Prompt(tiny.vocabulary.encode("some words"), ())
    for i, size in enumerate([(448, 280), (112, 84), (448, 280)]):
        prompt = plain.add_screen(tiny, prompt, f"click ({i})", plain.screen(i, size))
    sight, pad = tiny.model.sight, tiny.config.image_token_id
    layout = lay_out(prompt.ids, [sight.grid(one.width, one.height) for one in prompt.images], pad)
    images = {one.hash: torch.from_numpy(resized(decode(one.image), sight).copy()).cuda() for one in prompt.images}
    shown: dict[str, Any] = {"images": images, "shown": [one.hash for one in prompt.images]}
    ids, positions = layout.ids.cuda(), layout.positions.cuda()
    inputs = {name: one.cuda() for name, one in plain.reference_inputs(tiny, prompt).items()}
    reference = plain_model(exact.model).requires_grad_(True)
    banned = torch.tensor(banned_ids(tiny.config), device=ids.device)
    scores = reference(**inputs).logits[0].float().index_fill(-1, banned, float("-inf"))
    loss = scores[:-1].log_softmax(-1).gather(1, ids[1:, None])[ids[1:] < 200].sum()
    loss.backward()
    model = tiny.model.requires_grad_(True)
    for plan in (Recompute(), Recompute(3, 2, tower=True)):
        model.zero_grad()
        found = model(ids, positions, **shown, recompute=plan)
        allowed = torch.isfinite(scores)
        off = (found - scores)[allowed].abs()
        assert off.mean() < (1e-4 if dtype is torch.float32 else 0.1) * scores[allowed].std()
        found[:-1].log_softmax(-1).gather(1, ids[1:, None])[ids[1:] < 200].sum().backward()
        for name in ("embed_tokens.weight", "layers.0.self_attn.q_proj.weight", "layers.2.mlp.up_proj.weight"):
            mine = model.model.language_model.get_parameter(name).grad
            theirs = reference.model.language_model.get_parameter(name).grad
            assert mine is not None
            near = torch.nn.functional.cosine_similarity(mine.float().flatten(), theirs.flatten(), dim=0)
            assert near > (0.9999 if dtype is torch.float32 else 0.95), name
