"""What a network is: readers of config.json, safetensors and GGUF headers, the bundled catalogue, and ModelSpec.

Knows shapes, not jobs. May import ``data`` and what lies under it, nothing else.
To add a model family, write ``families/<model_type>.py`` with ``read(config) -> ModelSpec``; it is found by its name.
"""
