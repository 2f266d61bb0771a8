"""Makes the checkpoints of this folder, which hold the weights of model.safetensors: dcp (two ranks, with optimizer
states) and torch_dist (Megatron-LM, tensor parallelism of 2).

    python make_testdata.py FOLDER      # torch 2.15, transformers 5.24, megatron-core 0.16; no GPU
"""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
import torch.nn.functional as F

RANKS = 2


def make_model():
    from transformers import Qwen2Config, Qwen2ForCausalLM
    torch.manual_seed(1)
    config = Qwen2Config(vocab_size=22, hidden_size=8, intermediate_size=12, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                         tie_word_embeddings=False)
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return model.bfloat16().float()


def save_dcp(model, folder):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (RANKS,))
    state = {}
    for i, (name, weight) in enumerate(model.state_dict().items()):
        state[name] = distribute_tensor(weight.bfloat16(), mesh, [Shard(i % weight.dim())])
    moments = {"model.embed_tokens.weight.exp_avg": torch.ones(3), "model.embed_tokens.weight": torch.zeros(2)}
    dcp.save({"model": state, "optim": {"state": moments}, "step": 3}, checkpoint_id=folder + "/dcp")


def megatron_state(model):
    """The tensors of one rank of Megatron-LM's model, without tensor parallelism."""
    state, config = {}, model.config
    group = config.num_attention_heads // config.num_key_value_heads
    size = config.hidden_size // config.num_attention_heads
    hf = model.state_dict()

    def fused(prefix, kind):
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
        state[new + "input_layernorm.weight"] = hf[old + "input_layernorm.weight"]
        state[new + "pre_mlp_layernorm.weight"] = hf[old + "post_attention_layernorm.weight"]
        state[new + "self_attention.linear_qkv.weight"] = fused(old, "weight")
        state[new + "self_attention.linear_qkv.bias"] = fused(old, "bias")
        state[new + "self_attention.linear_proj.weight"] = hf[old + "self_attn.o_proj.weight"]
        state[new + "mlp.linear_fc1.weight"] = torch.cat([hf[old + "mlp.gate_proj.weight"], hf[old + "mlp.up_proj.weight"]])
        state[new + "mlp.linear_fc2.weight"] = hf[old + "mlp.down_proj.weight"]
    return state


def make_megatron(config, tensor_parallel):
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig
    parallel_state.initialize_model_parallel(tensor_parallel, 1)
    own = TransformerConfig(num_layers=config.num_hidden_layers, hidden_size=config.hidden_size,
                            num_attention_heads=config.num_attention_heads,
                            num_query_groups=config.num_key_value_heads, ffn_hidden_size=config.intermediate_size,
                            use_cpu_initialization=True, gated_linear_unit=True, activation_func=F.silu,
                            add_bias_linear=False, add_qkv_bias=True, normalization="RMSNorm",
                            tensor_model_parallel_size=tensor_parallel, pipeline_dtype=torch.float32)
    # Padded to 24 tokens.
    return GPTModel(config=own, transformer_layer_spec=get_gpt_layer_local_spec(normalization="RMSNorm"),
                    vocab_size=24, max_sequence_length=64, share_embeddings_and_output_weights=False,
                    position_embedding_type="rope")


def slice_of(name, whole, shape, rank):
    """The part of a tensor that a rank of tensor parallelism holds; padded with zeros."""
    if "linear_fc1" in name:
        return torch.cat([half.chunk(RANKS)[rank] for half in whole.chunk(2)])
    if name.startswith(("embedding", "output_layer")):
        whole = F.pad(whole, (0, 0, 0, shape[0] * RANKS - whole.shape[0]))
    for dimension in range(len(shape)):
        if whole.shape[dimension] != shape[dimension]:
            whole = whole.chunk(RANKS, dimension)[rank]
    return whole


def save_torch_dist(model, folder, rank):
    from megatron.core import dist_checkpointing
    megatron = make_megatron(model.config, RANKS)
    whole = megatron_state(model)
    own = {name: slice_of(name, whole[name], value.shape, rank)
           for name, value in megatron.state_dict().items() if hasattr(value, "shape")}
    megatron.load_state_dict(own, strict=False)
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
    model = make_model()
    if rank == 0:
        model.save_pretrained(folder)
    save_dcp(model, folder)
    save_torch_dist(model, folder, rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(rank_main, (sys.argv[1],), nprocs=RANKS)
