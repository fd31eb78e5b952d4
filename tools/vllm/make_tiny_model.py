"""A Llama of random parameters, with a tokenizer trained on the standard library: no hub needed.

    make_tiny_model.py FOLDER [tiny | mid]

`tiny` has two million parameters and steps of 6 ms; `mid` has fifty million, whose steps the arithmetic fills (25 ms on one core).
"""

import glob
import json
import os
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

LAYERS = 12
SIZES = {"tiny": (128, 256, LAYERS, 4, 2), "mid": (512, 1536, 16, 8, 4)}
"""Hidden size, MLP size, layers, attention heads, KV heads."""
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(folder: str) -> None:
    """Byte-level BPE of 2048 entries."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))[:120]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train(texts, trainers.BpeTrainer(vocab_size=2048, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="<|im_end|>", pad_token="</s>", model_max_length=4096
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


def make_model(folder: str, size: str) -> None:
    """Untied embeddings, so that greedy output varies.

    `tiny` has twelve layers of 128: fewer layers make steps of 2 ms, and then vLLM's own HTTP server, which handles every step's tokens, falls behind on a
    small machine: it takes in requests and answers /metrics in fits and starts, and queues come and go in waves.
    """
    torch.manual_seed(0)
    hidden, intermediate, layers, heads, kv_heads = SIZES[size]
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=4,
        pad_token_id=2,
        dtype="float32",
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder, safe_serialization=True)
    with open(os.path.join(folder, "generation_config.json"), "w") as file:
        json.dump({"bos_token_id": 1, "eos_token_id": 4, "pad_token_id": 2, "do_sample": True}, file)


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    make_tokenizer(sys.argv[1])
    wanted = sys.argv[2] if len(sys.argv) > 2 else "tiny"
    make_model(sys.argv[1], wanted)
    with open(os.path.join(sys.argv[1], f".layers-{SIZES[wanted][2]}"), "w"):
        pass
    print(sys.argv[1], sorted(os.listdir(sys.argv[1])))
