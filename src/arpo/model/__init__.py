"""The model: a Qwen2.5-VL as modules, what goes into it, and its checkpoints."""
