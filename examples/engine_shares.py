"""GRPO with vLLM beside the trainer on eight 80 GB cards: which share of each card may the engine have?"""

import memplan

JOB = {
    "model": "qwen2.5-7b",
    "method": "grpo",
    "trainer": "trl",
    "sharding": "zero3",
    "gpu": "h100-80gb",
    "num_gpus": 8,
    "gradient_accumulation_steps": 128,
    "rollout": {
        "engine": "vllm",
        "sleep": 2,
        "max_model_len": 2048,
        "group_size": 8,
        "prompt_length": 512,
        "completion_length": 1536,
    },
}

if __name__ == "__main__":
    print("share  KV tokens  sequences held  run  job           generation")
    for row in memplan.estimate(JOB).shares:
        fits = {"yes": "fits", "tight": "tight", "no": "does not fit"}[row.fits]
        line = f"{row.share:5.2f}  {row.kv_tokens:9,}  {row.held:14,.0f}  {row.wanted:3}  {fits:12}"
        print(f"{line}  {row.generation_seconds:8.1f} s  {', '.join(row.why)}".rstrip())
