# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/qwen3_5: a small random model in transformers' own form, and what transformers computes with it.

    python tests/golden/qwen3_5.py    (needs torch, transformers >= 5.17 and safetensors; on a CPU, in float32)

config.json, model.safetensors   a Qwen3_5ForCausalLM folder: GDN and attention layers, grouped heads, tied embedding
expected.safetensors             tokens [T], logits [T, vocabulary], loss [1] (mean of the T - 1 next tokens), and
                                 gradient.<name> of the loss for every tensor
greedy.safetensors               prompt, and the tokens that greedy decoding adds to it
"""

import pathlib

import safetensors.torch
import torch
import transformers

FOLDER = pathlib.Path(__file__).resolve().parent / "qwen3_5"
TOKENS = 70  # more than one chunk of 64


def small_model():
    config = transformers.Qwen3_5TextConfig(
        vocab_size=24, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=4, linear_value_head_dim=6,
        max_position_embeddings=256, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
                         "mrope_interleaved": True, "mrope_section": [1, 1, 0]})
    model = transformers.Qwen3_5ForCausalLM(config).float().eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            drawn = torch.randn(parameter.shape, generator=generator)
            if name.endswith("A_log"):
                parameter.copy_(0.7 * drawn)
            elif name.endswith("linear_attn.norm.weight") or name.endswith("dt_bias"):
                parameter.copy_(1.0 + 0.3 * drawn)
            else:
                parameter.copy_(0.35 * drawn)
    return model


def main():
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    model = small_model()
    FOLDER.mkdir(exist_ok=True)
    model.save_pretrained(FOLDER)
    (FOLDER / "generation_config.json").unlink(missing_ok=True)
    tokens = torch.randint(0, model.config.vocab_size, (1, TOKENS), generator=torch.Generator().manual_seed(3))
    output = model(input_ids=tokens, labels=tokens, use_cache=False)
    output.loss.backward()
    expected = {"tokens": tokens[0].int(), "logits": output.logits[0].detach(), "loss": output.loss.detach().reshape(1)}
    for name, parameter in model.named_parameters():
        expected["gradient." + name] = parameter.grad
    safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in expected.items()},
                                FOLDER / "expected.safetensors", metadata={"transformers": transformers.__version__})
    prompt = tokens[:, :9]
    with torch.no_grad():
        added = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=24, do_sample=False,
                               eos_token_id=None, pad_token_id=0)
    safetensors.torch.save_file({"prompt": prompt[0].int(), "greedy": added[0, 9:].int().contiguous()},
                                FOLDER / "greedy.safetensors")


if __name__ == "__main__":
    main()
