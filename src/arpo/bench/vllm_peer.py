"""The episodes of `large` by vLLM, in a process of its own: `python vllm_peer.py FOLDER`.

The folder has the model's config, its tokenizer, and what is to be played, work.json. Nothing of arpo is imported, so
that it runs where vLLM lives. Weights are random, since only times are wanted.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from PIL import Image

IMAGES = {
    "min_pixels": 56 * 56,
    "max_pixels": 16384 * 28 * 28,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
}


def main(place: Path) -> None:
    for name, kind in (("preprocessor_config", "image"), ("video_preprocessor_config", "video")):
        made = {
            f"{kind}_processor_type": f"Qwen2VL{kind.capitalize()}Processor",
            "processor_class": "Qwen2_5_VLProcessor",
        }
        (place / f"{name}.json").write_text(json.dumps({**IMAGES, **made}))
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

    work = json.loads((place / "work.json").read_text())
    episodes, tokens = work["episodes"], work["tokens"]
    turns = len(episodes[0]["ids"])
    began = time.perf_counter()
    llm = LLM(
        model=str(place),
        load_format="dummy",
        dtype="bfloat16",
        max_model_len=32768,
        max_num_seqs=max(16, len(episodes)),
        limit_mm_per_prompt={"image": turns, "video": 0},
        enable_prefix_caching=True,
        gpu_memory_utilization=0.7,
    )
    up_s = time.perf_counter() - began
    # Only ids that are text: a drawn image token would make the next prompt another one.
    settings = SamplingParams(
        temperature=1.0,
        max_tokens=tokens,
        min_tokens=tokens,
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
        allowed_token_ids=list(range(work["banned"] - 10)),
    )
    for warm_up in (True, False):
        seconds = play(llm, settings, episodes, place, 1 if warm_up else turns, "warm" if warm_up else "")
    rate = len(episodes) * turns * tokens / sum(seconds)
    print(json.dumps({"vllm_sample_tokens_per_s": rate, "vllm_turns_s": seconds, "vllm_up_s": up_s}))


def play(llm: Any, settings: Any, episodes: list[Any], place: Path, turns: int, name: str) -> list[float]:
    """Seconds of each turn of all episodes at once. Pictures are decoded before, in its favour."""
    ids: list[list[int]] = [[] for _ in episodes]
    pictures: list[list[Any]] = [[] for _ in episodes]
    names: list[list[str]] = [[] for _ in episodes]
    seconds = []
    for turn in range(turns):
        for i, episode in enumerate(episodes):
            ids[i] += episode["ids"][turn]
            pictures[i].append(Image.open(place / f"{episode['screens'][turn]}.png").convert("RGB"))
            names[i].append(name + episode["screens"][turn])
        prompts = [
            {
                "prompt_token_ids": list(ids[i]),
                "multi_modal_data": {"image": list(pictures[i])},
                "multi_modal_uuids": {"image": list(names[i])},
            }
            for i in range(len(episodes))
        ]
        began = time.perf_counter()
        replies = llm.generate(prompts, settings, use_tqdm=False)
        seconds.append(time.perf_counter() - began)
        for i, reply in enumerate(replies):
            ids[i] += reply.outputs[0].token_ids
    return seconds


if __name__ == "__main__":
    main(Path(sys.argv[1]))
