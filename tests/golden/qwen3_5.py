# SPDX-License-Identifier: Apache-2.0
"""Writes a folder with a random model in transformers' own form, and what transformers computes with it.

    python tests/golden/qwen3_5.py        the small model of tests/golden/qwen3_5, on a CPU
    python tests/golden/qwen3_5.py --folder FULL --size 0.8b --device cuda        too large to be committed
    python tests/golden/qwen3_5.py --folder TUNED --existing --device cuda        with the model that is there
    GOLDEN_QWEN3_5=FULL build/cuda-sm90/tests/golden/golden_qwen3_5_test

Needs torch, transformers >= 5.17 and safetensors. What is expected comes from their code in float64: in float32 their
own gradients of A_log and dt_bias are off by 2e-4 at full size. It is printed how far they are off.

config.json, model.safetensors   a Qwen3_5ForCausalLM folder: GDN and attention layers, tied embedding
expected.safetensors             tokens [B, T], logits [B, T, vocabulary], loss [1] (mean of the B (T - 1) next tokens),
                                 and gradient.<name> of the loss for every tensor; rounded to float32
greedy.safetensors               prompt [N, P], and the tokens greedy [N, M] that greedy decoding adds to each
curve.safetensors                a training run of S steps: tokens [S B T + 1], of which step s learns those from s B T
                                 on; losses of three runs [S]; metadata with the settings
"""

import argparse
import contextlib
import pathlib
import re

import safetensors.torch
import torch
import transformers
from transformers.models.qwen3_5 import modeling_qwen3_5

SMALL = dict(
    vocab_size=24, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
    layer_types=["linear_attention", "full_attention"],
    num_attention_heads=4, num_key_value_heads=2, head_dim=8,
    linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=4, linear_value_head_dim=6,
    max_position_embeddings=256, tie_word_embeddings=True,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
                     "mrope_interleaved": True, "mrope_section": [1, 1, 0]})
FULL = dict(
    vocab_size=248320, hidden_size=1024, intermediate_size=3584, num_hidden_layers=24, full_attention_interval=4,
    num_attention_heads=8, num_key_value_heads=2, head_dim=256,
    linear_num_key_heads=16, linear_num_value_heads=16, linear_key_head_dim=128, linear_value_head_dim=128,
    max_position_embeddings=262144, tie_word_embeddings=True,
    rope_parameters={"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
                     "mrope_interleaved": True, "mrope_section": [11, 11, 10]})
# Of expected.safetensors B and T; of the curve its B, T and peak learning rate.
SIZES = {"small": (SMALL, 2, 70, 2, 70, 5e-4), "0.8b": (FULL, 2, 256, 4, 256, 3e-4)}
STEPS, WARMUP, CLIP, DECAY, BETAS, EPS = 50, 5, 1.0, 0.1, (0.9, 0.95), 1e-8
PROMPTS, PROMPT_TOKENS, GREEDY_TOKENS = 3, 9, 24


def small_model():
    model = transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**SMALL)).float().eval()
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


def full_model(device):
    """As transformers initialises it, but that no vector is all zeros or ones."""
    with torch.device(device):
        model = transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**FULL)).float().eval()
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.dim() == 1 and not name.endswith("A_log"):
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def save(path, tensors, **metadata):
    safetensors.torch.save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path,
                                metadata={"transformers": transformers.__version__, **metadata})


class Float64Torch:
    """torch, for code that asks for float32 by name."""

    def __getattr__(self, name):
        return torch.float64 if name in ("float", "float32") else getattr(torch, name)


@contextlib.contextmanager
def float64():
    """Their code computes everything in float64, what it casts to float32 too."""
    modeling_qwen3_5.torch, as_float = Float64Torch(), torch.Tensor.float
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        modeling_qwen3_5.torch, torch.Tensor.float = torch, as_float


def compute(model, tokens):
    output = model(input_ids=tokens, labels=tokens, use_cache=False)
    output.loss.backward()
    found = {"logits": output.logits.detach(), "loss": output.loss.detach().reshape(1)}
    for name, parameter in model.named_parameters():
        found["gradient." + name], parameter.grad = parameter.grad, None
    return found


def print_deviations(found, exact):
    kinds = {}
    for name, tensor in found.items():
        difference = (tensor.double() - exact[name]).square().mean().sqrt() / exact[name].square().mean().sqrt()
        kind = re.sub(r"model\.layers\.[0-9]+\.", "", name)
        kinds[kind] = max(kinds.get(kind, 0.0), difference.item())
    print("rms of their rounding in float32 over rms:")
    for kind, deviation in sorted(kinds.items()):
        print(f"  {kind:50} {deviation:.1e}")


def write_expected(model, folder, batch, length):
    tokens = torch.randint(0, model.config.vocab_size, (batch, length), generator=torch.Generator().manual_seed(14))
    tokens = tokens.to(model.device)
    rounded = compute(model, tokens)
    with float64():
        exact = compute(model.double(), tokens)
    print_deviations(rounded, exact)
    save(folder / "expected.safetensors",
         {"tokens": tokens.int(), **{name: tensor.float() for name, tensor in exact.items()}})


def write_greedy(model, folder):
    prompt = torch.randint(0, model.config.vocab_size, (PROMPTS, PROMPT_TOKENS),
                           generator=torch.Generator().manual_seed(4)).to(model.device)
    with torch.no_grad():
        text = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=GREEDY_TOKENS,
                              do_sample=False, eos_token_id=None, pad_token_id=0)
    save(folder / "greedy.safetensors", {"prompt": prompt.int(), "greedy": text[:, PROMPT_TOKENS:].int()})


def curve_tokens(vocabulary, count):
    """Each token follows from the one before, but for one in ten. No more than 64 of them occur."""
    kinds = min(vocabulary, 64)
    surprise = torch.rand(count, generator=torch.Generator().manual_seed(5)) < 0.1
    state, states = 0, []
    for i in range(count):
        state = (5 * state + 3 + int(surprise[i])) % kinds
        states.append(state)
    return torch.tensor(states) * (vocabulary // kinds)


def train(model, steps, rate, kind):
    """Losses of AdamW. float32: all of it. autocast: products in bfloat16. bfloat16: weights and activations, beside
    float32 master weights, moments and update."""
    masters = list(model.parameters())
    if kind == "bfloat16":
        masters = [parameter.detach().clone().requires_grad_() for parameter in masters]
        model.to(torch.bfloat16)
    groups = [{"params": [w for w in masters if w.dim() == 2], "weight_decay": DECAY},
              {"params": [w for w in masters if w.dim() != 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=BETAS, eps=EPS)
    losses = []
    for step, (inputs, labels) in enumerate(steps):
        with torch.autocast(model.device.type, torch.bfloat16, enabled=kind == "autocast"):
            logits = model(input_ids=inputs, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
        loss.backward()
        losses.append(loss.detach())
        if kind == "bfloat16":
            for master, parameter in zip(masters, model.parameters()):
                master.grad, parameter.grad = parameter.grad.float(), None
        torch.nn.utils.clip_grad_norm_(masters, CLIP)
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / WARMUP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if kind == "bfloat16":
            with torch.no_grad():
                for master, parameter in zip(masters, model.parameters()):
                    parameter.copy_(master)
    return torch.stack(losses).double()


def write_curve(load, folder, batch, length, rate):
    each = batch * length
    model = load()
    tokens = curve_tokens(model.config.vocab_size, STEPS * each + 1)
    on_device = tokens.to(model.device)
    steps = [(on_device[s * each:(s + 1) * each].view(batch, length),
              on_device[s * each + 1:(s + 1) * each + 1].view(batch, length)) for s in range(STEPS)]
    curves = {}
    for kind in ("float32", "autocast", "bfloat16"):
        curves[kind] = train(model if model is not None else load(), steps, rate, kind)
        model = None
    narrow = tokens.short() if tokens.max() < 2**15 else tokens.int()
    save(folder / "curve.safetensors", {"tokens": narrow, **curves}, samples=str(batch), length=str(length),
         rate=repr(rate), warmup=str(WARMUP), clip=repr(CLIP), decay=repr(DECAY), beta1=repr(BETAS[0]),
         beta2=repr(BETAS[1]), eps=repr(EPS))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent / "qwen3_5")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--existing", action="store_true", help="the model is in the folder; it stays as it is")
    parser.add_argument("--no-curve", action="store_true", help="leave curve.safetensors out")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(options.device == "cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False

    _, batch, length, curve_batch, curve_length, rate = SIZES[options.size]
    if not options.existing:
        options.folder.mkdir(parents=True, exist_ok=True)
        model = small_model() if options.size == "small" else full_model(options.device)
        model.save_pretrained(options.folder)
        (options.folder / "generation_config.json").unlink(missing_ok=True)

    def load():
        return transformers.Qwen3_5ForCausalLM.from_pretrained(
            options.folder, dtype=torch.float32, attn_implementation="eager").to(options.device).eval()

    write_greedy(load(), options.folder)
    write_expected(load(), options.folder, batch, length)
    if not options.no_curve:
        write_curve(load, options.folder, curve_batch, curve_length, rate)


if __name__ == "__main__":
    main()
