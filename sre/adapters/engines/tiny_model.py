"""
A tiny random Llama (about 1 MB) in a folder: lets the real vLLM serve on a CPU in seconds, without any download.

Needs ``tokenizers``, ``transformers`` and ``torch``, which come with vLLM, and nothing of ``sre``: also runs as a
script in an interpreter where only vLLM is installed: ``python tiny_model.py OUT_DIR``. Its answers are noise.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

VOCABULARY_SIZE = 1024
"""Rows of the embedding; the tokenizer has fewer tokens."""
TOKENIZER_SIZE = 1000
MAX_POSITIONS = 16384
"""Longest sequence; vLLM's --max-model-len may not be above. Long, so that tests can break into an answer."""
SPECIAL_TOKENS = ("<s>", "</s>", "<pad>")
"""Their ids are 0, 1, 2."""
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
TRAINING_TEXT = (
    "An engine that hangs still says it is healthy.",
    "Requests in flight and no new step: that is a hang.",
    "Refuse at the gateway, tell a person, restart the engine, let traffic come back slowly.",
    "Every number carries its unit and every decision its reason.",
)
COMPLETE_MARK = "tiny-model.complete"
"""Written last: a folder without it is half made."""


def is_tiny_model(folder: Path) -> bool:
    """Whether ``folder`` holds a model made by this version of this module, complete."""
    try:
        return (folder / COMPLETE_MARK).read_text() == _recipe()
    except OSError:
        return False


def make_tiny_model(folder: Path) -> Path:
    """
    Make the model in ``folder`` unless it is there; return ``folder``. Safe when two processes do it at once.

    Raises:
        ImportError: This interpreter has no vLLM (tokenizers, transformers, torch).
        OSError: The folder cannot be written.
    """
    if is_tiny_model(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _save_tokenizer(draft)
        _save_weights(draft)
        (draft / COMPLETE_MARK).write_text(_recipe())
        shutil.rmtree(folder, ignore_errors=True)
        try:
            os.rename(draft, folder)
        except OSError:
            if not is_tiny_model(folder):  # otherwise another process was faster
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _recipe() -> str:
    return f"1 {VOCABULARY_SIZE} {TOKENIZER_SIZE} {MAX_POSITIONS} {CHAT_TEMPLATE!r}\n"


def _save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TOKENIZER_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXT, trainer)
    bos, eos, pad = SPECIAL_TOKENS
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, eos_token=eos, pad_token=pad)
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(folder)


def _save_weights(folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=MAX_POSITIONS,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def main(argv: list[str]) -> int:
    """``tiny_model.py OUT_DIR``: 0 when the model is there."""
    if len(argv) != 2:
        sys.stderr.write("usage: python tiny_model.py OUT_DIR\n")
        return 2
    try:
        make_tiny_model(Path(argv[1]).absolute())
    except ImportError as error:
        sys.stderr.write(
            f"tiny_model: {error.name} is missing in {sys.executable}; run with the Python that has vLLM\n"
        )
        return 1
    except OSError as error:
        sys.stderr.write(f"tiny_model: {argv[1]}: {error.strerror}; choose a folder that can be written\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
