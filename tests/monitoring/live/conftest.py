"""The tiny model for the real vLLM."""

from tests.support.vllm import tiny_model

__all__ = ["tiny_model"]
