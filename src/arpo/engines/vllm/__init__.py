"""Sampling by vLLM servers: `engine.name=vllm`, `arpo serve`."""
