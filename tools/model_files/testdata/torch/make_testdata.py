"""Makes the checkpoints of this folder, each with the weights of the model.safetensors beside it: qwen2/dcp (two ranks,
with optimizer states) and three torch_dist of Megatron-LM: qwen2 and deepseek_v3 with tensor parallelism of 2, gpt_oss with
expert parallelism of 2.

    python make_testdata.py FOLDER      # torch 2.15, transformers 5.24, megatron-core 0.16; no GPU

megatron-core builds latent attention only with Transformer Engine, which needs a GPU. Here it is built of megatron-core's own
modules, and its norms get the names that they have in Transformer Engine's.
"""
import os
import re
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
import torch.nn.functional as F

RANKS = 2
SHAPE = dict(vocab_size=22, hidden_size=8, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, tie_word_embeddings=False)


def make_models():
    from transformers import DeepseekV3Config, GptOssConfig, Qwen2Config, AutoModelForCausalLM
    configs = {
        "qwen2": Qwen2Config(**SHAPE, intermediate_size=12),
        "deepseek_v3": DeepseekV3Config(**SHAPE | dict(num_key_value_heads=4), intermediate_size=12, moe_intermediate_size=6,
                                        n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, n_shared_experts=2,
                                        first_k_dense_replace=1, q_lora_rank=6, kv_lora_rank=6, qk_nope_head_dim=4,
                                        qk_rope_head_dim=2, v_head_dim=3),
        "gpt_oss": GptOssConfig(**SHAPE, intermediate_size=5, head_dim=4, num_local_experts=4, num_experts_per_tok=2,
                                sliding_window=3, pad_token_id=None)}
    models = {}
    for name, config in configs.items():
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for parameter in model.state_dict().values():
                parameter.copy_(torch.randn_like(parameter))
        models[name] = model.bfloat16().float()
    return models


def save_dcp(model, folder):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (RANKS,))
    state = {}
    for i, (name, weight) in enumerate(model.state_dict().items()):
        state[name] = distribute_tensor(weight.bfloat16(), mesh, [Shard(i % weight.dim())])
    moments = {"model.embed_tokens.weight.exp_avg": torch.ones(3), "model.embed_tokens.weight": torch.zeros(2)}
    dcp.save({"model": state, "optim": {"state": moments}, "step": 3}, checkpoint_id=folder + "/dcp")


# The names of tensors in a layer of Megatron-LM's own modules, and in one of transformers.
NAMES = {
    "input_layernorm.weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "self_attention.linear_proj.bias": "self_attn.o_proj.bias",
    "self_attention.core_attention.softmax_offset": "self_attn.sinks",
    "self_attention.linear_q_proj.weight": "self_attn.q_proj.weight",
    "self_attention.linear_q_down_proj.weight": "self_attn.q_a_proj.weight",
    "self_attention.q_layernorm.weight": "self_attn.q_a_layernorm.weight",
    "self_attention.linear_q_up_proj.weight": "self_attn.q_b_proj.weight",
    "self_attention.linear_kv_down_proj.weight": "self_attn.kv_a_proj_with_mqa.weight",
    "self_attention.kv_layernorm.weight": "self_attn.kv_a_layernorm.weight",
    "self_attention.linear_kv_up_proj.weight": "self_attn.kv_b_proj.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
    "mlp.router.expert_bias": "mlp.gate.e_score_correction_bias",
    "mlp.shared_experts.linear_fc2.weight": "mlp.shared_experts.down_proj.weight"}


def add_experts(hf, config, old, new, state):
    """The matrices of GPT-OSS's experts are transposed, and its gates and ups alternate."""
    is_gpt_oss = config.model_type == "gpt_oss"
    state[new + "mlp.router.weight"] = hf[old + ("mlp.router.weight" if is_gpt_oss else "mlp.gate.weight")]
    if is_gpt_oss:
        state[new + "mlp.router.bias"] = hf[old + "mlp.router.bias"]
    for expert in range(len(hf[old + "mlp.experts.down_proj"])):
        to = f"{new}mlp.experts.local_experts.{expert}."
        for product, source in (("linear_fc1", "gate_up_proj"), ("linear_fc2", "down_proj")):
            weight = hf[f"{old}mlp.experts.{source}"][expert]
            if not is_gpt_oss:
                state[f"{to}{product}.weight"] = weight
                continue
            parts = {"weight": weight.T, "bias": hf[f"{old}mlp.experts.{source}_bias"][expert]}
            for kind, rows in parts.items():
                state[f"{to}{product}.{kind}"] = torch.cat([rows[::2], rows[1::2]]) if source == "gate_up_proj" else rows


def megatron_state(model):
    """The tensors of one rank of Megatron-LM's model, without tensor and expert parallelism."""
    state, config, hf = {}, model.config, model.state_dict()

    def fused(prefix, kind):
        group = config.num_attention_heads // config.num_key_value_heads
        size = hf[f"{prefix}self_attn.q_proj.{kind}"].shape[0] // config.num_attention_heads
        q, k, v = (hf[f"{prefix}self_attn.{x}_proj.{kind}"] for x in "qkv")
        rows = []
        for g in range(config.num_key_value_heads):
            rows += [q[g * group * size:(g + 1) * group * size], k[g * size:(g + 1) * size], v[g * size:(g + 1) * size]]
        return torch.cat(rows)

    state["embedding.word_embeddings.weight"] = hf["model.embed_tokens.weight"]
    state["output_layer.weight"] = hf["lm_head.weight"]
    state["decoder.final_layernorm.weight"] = hf["model.norm.weight"]
    for i in range(config.num_hidden_layers):
        old, new = f"model.layers.{i}.", f"decoder.layers.{i}."
        state |= {new + name: hf[old + source] for name, source in NAMES.items() if old + source in hf}
        for kind in "weight", "bias":
            if f"{old}self_attn.k_proj.{kind}" in hf:
                state.pop(f"{new}self_attention.linear_q_proj.{kind}", None)
                state[f"{new}self_attention.linear_qkv.{kind}"] = fused(old, kind)
        for mlp in "mlp.", "mlp.shared_experts.":
            if f"{old}{mlp}gate_proj.weight" in hf:
                halves = [hf[f"{old}{mlp}{half}_proj.weight"] for half in ("gate", "up")]
                state[f"{new}{mlp}linear_fc1.weight"] = torch.cat(halves)
        if old + "mlp.experts.down_proj" in hf:
            add_experts(hf, config, old, new, state)
    return state


def prepare_latent_attention():
    """Makes megatron-core build latent attention without Transformer Engine."""
    import megatron.core.transformer.multi_latent_attention as latent
    from megatron.core.models.backends import LocalSpecProvider
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    class Attention(DotProductAttention):
        def __init__(self, *arguments, k_channels=None, v_channels=None, **options):
            super().__init__(*arguments, **options)

    latent.HAVE_TE = False
    LocalSpecProvider.core_attention = lambda self: Attention


def make_megatron(config, tensor_parallel, expert_parallel):
    from megatron.core import parallel_state
    from megatron.core.fusions.fused_bias_geglu import quick_gelu
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_layer_specs, get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.torch_norm import WrappedTorchNorm
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(tensor_parallel, 1, expert_model_parallel_size=expert_parallel)
    common = dict(num_layers=config.num_hidden_layers, hidden_size=config.hidden_size,
                  num_attention_heads=config.num_attention_heads, num_query_groups=config.num_key_value_heads,
                  ffn_hidden_size=config.intermediate_size, use_cpu_initialization=True, gated_linear_unit=True,
                  activation_func=F.silu, add_bias_linear=False, normalization="RMSNorm",
                  layernorm_epsilon=config.rms_norm_eps, tensor_model_parallel_size=tensor_parallel,
                  expert_model_parallel_size=expert_parallel, pipeline_dtype=torch.float32,
                  moe_token_dispatcher_type="allgather", hidden_dropout=0, attention_dropout=0, bias_dropout_fusion=False)
    if config.model_type.startswith("deepseek"):
        prepare_latent_attention()
        dense = config.first_k_dense_replace
        is_v3 = config.model_type == "deepseek_v3"
        own = MLATransformerConfig(
            **common, multi_latent_attention=True, qk_layernorm=True, q_lora_rank=config.q_lora_rank,
            kv_lora_rank=config.kv_lora_rank, qk_head_dim=config.qk_nope_head_dim, qk_pos_emb_head_dim=config.qk_rope_head_dim,
            v_head_dim=config.v_head_dim, rope_type="rope", num_moe_experts=config.n_routed_experts,
            moe_layer_freq=[0] * dense + [1] * (config.num_hidden_layers - dense) if dense else 1,
            moe_ffn_hidden_size=config.moe_intermediate_size, moe_router_topk=config.num_experts_per_tok,
            moe_shared_expert_intermediate_size=config.n_shared_experts * config.moe_intermediate_size,
            moe_router_num_groups=config.n_group, moe_router_group_topk=config.topk_group, moe_router_enable_expert_bias=is_v3,
            moe_router_score_function="sigmoid" if is_v3 else "softmax")
        layers = get_gpt_decoder_layer_specs(own, use_transformer_engine=False, normalization="RMSNorm")
        for i, layer in enumerate(layers):
            fused = {"self_attention.q_layernorm.": "self_attention.linear_q_up_proj.layer_norm_",
                     "self_attention.kv_layernorm.": "self_attention.linear_kv_up_proj.layer_norm_"}
            if i < dense:
                fused["pre_mlp_layernorm."] = "mlp.linear_fc1.layer_norm_"
            layer.submodules.sharded_state_dict_keys_map = fused
        spec = TransformerBlockSubmodules(layer_specs=layers, layer_norm=WrappedTorchNorm)
    elif config.model_type == "gpt_oss":
        own = TransformerConfig(**common | dict(add_bias_linear=True, activation_func=quick_gelu),
                                kv_channels=config.head_dim, glu_linear_offset=1.0, activation_func_clamp_value=7.0,
                                num_moe_experts=config.num_local_experts, moe_router_topk=config.num_experts_per_tok,
                                softmax_type="learnable", window_size=(config.sliding_window - 1, 0), window_attn_skip_freq=2,
                                bias_activation_fusion=False)
        spec = get_gpt_layer_local_spec(num_experts=config.num_local_experts, normalization="RMSNorm")
    else:
        own = TransformerConfig(**common, add_qkv_bias=True)
        spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    # Padded to 24 tokens.
    return GPTModel(config=own, transformer_layer_spec=spec, vocab_size=24, max_sequence_length=64,
                    share_embeddings_and_output_weights=False, position_embedding_type="rope")


def slice_of(name, whole, shape, rank):
    """The part of a tensor that a rank of tensor parallelism holds; padded with zeros."""
    if name.startswith(("embedding", "output_layer")):
        whole = F.pad(whole, (0, 0, 0, 24 - whole.shape[0]))
    if "linear_fc1" in name and whole.shape != shape:
        return torch.cat([half.chunk(RANKS)[rank] for half in whole.chunk(2)])
    for dimension in range(len(shape)):
        if whole.shape[dimension] != shape[dimension]:
            whole = whole.chunk(RANKS, dimension)[rank]
    return whole


def own_part(model, megatron, expert_parallel, rank):
    """The tensors of megatron_state for the names of a rank's model."""
    whole, own = megatron_state(model), {}
    for name, value in megatron.state_dict().items():
        if not hasattr(value, "shape"):
            continue
        source = name
        if "local_experts" in name and expert_parallel > 1:
            first = rank * model.config.num_local_experts // expert_parallel
            source = re.sub(r"(local_experts\.)(\d+)", lambda found: found[1] + str(first + int(found[2])), name)
        own[name] = slice_of(name, whole.pop(source), value.shape, rank)
    assert expert_parallel > 1 or not whole, f"not in Megatron-LM's model: {list(whole)}"
    return own


def save_torch_dist(model, folder, rank, tensor_parallel, expert_parallel):
    from megatron.core import dist_checkpointing
    megatron = make_megatron(model.config, tensor_parallel, expert_parallel)
    missing, unexpected = megatron.load_state_dict(own_part(model, megatron, expert_parallel, rank), strict=False)
    assert not unexpected and all("_extra_state" in name for name in missing), (missing, unexpected)
    os.makedirs(folder + "/torch_dist", exist_ok=True)
    dist_checkpointing.save(megatron.sharded_state_dict(), folder + "/torch_dist")


def start_rank(rank, ranks, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port))
    torch.cuda.synchronize = lambda *arguments: None  # megatron-core calls them without a GPU, too.
    torch.cuda.current_device = lambda: "cpu"
    dist.init_process_group("gloo")


def rank_main(rank, folder):
    start_rank(rank, RANKS, 29531)
    for name, model in make_models().items():
        to = f"{folder}/{name}"
        if rank == 0:
            model.save_pretrained(to)
        dist.barrier()
        if name == "qwen2":
            save_dcp(model, to)
        by_expert = name == "gpt_oss"
        save_torch_dist(model, to, rank, 1 if by_expert else RANKS, RANKS if by_expert else 1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(rank_main, (sys.argv[1],), nprocs=RANKS)
