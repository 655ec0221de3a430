"""llama.cpp's own server before a model of random weights, for `lab/bench/local.py` and the tests.

Run by a Python that has xllamacpp and gguf, outside our package: `llama_server.py FOLDER SLOTS`. Prints the address, and
ends when stdin is closed.
"""

import sys
from pathlib import Path

import gguf
import numpy as np
import xllamacpp

WIDTH, INNER, LAYERS, HEADS, CONTEXT = 64, 128, 2, 4, 4096
BYTES = [f"<0x{number:02X}>" for number in range(256)]
WORDS = [f"\u2581w{number}" for number in range(253)]


def write_model(path):
    """A Llama of 512 tokens, 600 KB; the same at each run."""
    random, writer = np.random.default_rng(1), gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *WORDS]
    kinds = gguf.TokenType
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 3 + [-1000.0] * len(BYTES) + [-float(rank) for rank in range(len(WORDS))])
    writer.add_token_types(
        [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL] + [kinds.BYTE] * len(BYTES) + [kinds.NORMAL] * len(WORDS)
    )
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }} {% endfor %}")

    def add(name, *shape):
        weights = random.standard_normal(shape) * 0.05 if len(shape) > 1 else np.ones(shape)
        writer.add_tensor(f"{name}.weight", weights.astype(np.float32))

    add("token_embd", len(tokens), WIDTH)
    add("output", len(tokens), WIDTH)
    add("output_norm", WIDTH)
    for number in range(LAYERS):
        layer = f"blk.{number}"
        for name in ("attn_norm", "ffn_norm"):
            add(f"{layer}.{name}", WIDTH)
        for name in ("q", "k", "v", "output"):
            add(f"{layer}.attn_{name}", WIDTH, WIDTH)
        add(f"{layer}.ffn_gate", INNER, WIDTH)
        add(f"{layer}.ffn_up", INNER, WIDTH)
        add(f"{layer}.ffn_down", WIDTH, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    folder, slots = sys.argv[1:]
    path = Path(folder) / "random.gguf"
    write_model(path)
    settings = xllamacpp.CommonParams()
    settings.model.path, settings.port = str(path), 0
    settings.n_parallel, settings.n_ctx = int(slots), int(slots) * CONTEXT
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(settings)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
