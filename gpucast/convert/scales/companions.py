# SPDX-License-Identifier: Apache-2.0
"""The tensors that lie beside codes, by name: one table of what each is, and what becomes of it when its codes become
numbers. A checkpoint that shows any sign of quantization holds nothing but codes, these, and weights by known names;
anything else stops a conversion.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from typing import Literal

from gpucast.files import Tensor
from gpucast.files.tensor import StoredTensor

#: "part": of a weight, applied to its codes; alone it is an error. "inputs": a scale of what a layer is given; "cache":
#: of a cache of keys and values. Both say nothing of weights: they are carried on where the written style has them,
#: else dropped with a line. "refused": the numbers of the weights depend on it in a way that is not known here.
Fate = Literal["part", "inputs", "cache", "refused"]

#: What follows the name of a layer in that of the scale of its inputs, which multiplies float8 codes.
INPUT = ".input_scale"
#: Columns: what becomes of it; what it is, and where such names come from; patterns of names. The first match counts.
#: After a "~" names are such as plain models have, too: they mean this only beside other signs of quantization.
_TABLE = """
cache | a scale of the cache (Ascend modelslim) | *.fa_[qkv].scale *.fa_[qkv].offset *.kv_cache_scale *.kv_cache_offset
inputs | a scale of inputs (vLLM, SGLang, compressed-tensors, ModelOpt) | *input_scale *input_scale_inv \
    *input_global_scale *input_zero_point *act_scale *act_scales *activation_scale *activation_scales \
    *activation_scale_ub *input_scale_ub *act_global_scale *.in_scale *_input_amax
inputs | a scale of inputs (ComfyUI) | *scale_input
inputs | a scale of inputs (TensorRT-LLM) | *.activation_scaling_factor
inputs | largest inputs that were seen (ModelOpt, TransformerEngine) | *.input_quantizer._amax \
    *.output_quantizer._amax *.amax_history* *.scale_fwd *.scale_bwd
~cache | a scale of the cache (vLLM maybe_remap_kv_scale_name, ModelOpt, compressed-tensors) | *.[kvq]_scale \
    *.kv_scale *.[kv]_proj.output_scale *.qkv_proj.output_scale *.prob_scale *.[kv]_zero_point *.[kv]_cache_scale \
    *.[kv]_global_scale
inputs | a scale of outputs (compressed-tensors, Quark) | *.output_scale *.output_zero_point \
    *.output_global_scale
cache | a scale of the cache (TensorRT-LLM, ModelOpt) | *.kv_cache_scaling_factor *.kv_cache_rcp_scaling_factor \
    *.[kvq]_bmm_quantizer._amax
refused | an order of groups (GPTQ act_order, compressed-tensors actorder=group) | *g_idx *.q_perm *.q_invperm
~refused | an order of groups or columns (VPTQ, SpQR) | *.perm *.invperm *.in_perm
refused | inputs are multiplied by it (ModelOpt AWQ and SmoothQuant, TensorRT-LLM) | *pre_quant_scale \
    *prequant_scaling_factor *smooth_scale *smooth_factor *smooth_factor_orig *smoother *.smooth_quant_scale
~refused | part of a rotation (compressed-tensors transforms, fp_quant, EXL3, QuIP) | *hadamard* *.R[1-4]* \
    *_weight_input.* *_weight_output.* *.u_input.* *.v_output.* *rotation* *.suh *.svh *.su *.sv *.SU *.SV
refused | part of a weight in another form (Ascend modelslim; a bias may be folded into it) | *.deq_scale \
    *.quant_bias *.input_offset *.weight_offset *.weight_scale_second *.weight_offset_second *.scale_bias \
    *_scale_bias *_zero_bias *_scale_offset
refused | part of a weight by GPTQ, AWQ or EETQ, which are not read here | *qweight *qzeros *weight_scales
refused | part of a weight by bitsandbytes, which is not read here | *.absmax *.quant_map *.nested_absmax \
    *.nested_quant_map *.quant_state.* *.SCB *.weight_format
~refused | part of a weight by MLX (affine), which is not read here | *.biases
refused | part of a weight by optimum-quanto or torchao, which are not read here | *._data *._scale *._shift \
    *_qdata *._weight_scale *._weight_zero_point *._weight_*
refused | part of a weight by HQQ, AQLM, VPTQ, SpQR, QuIP, EXL2, EXL3 or HIGGS, which are not read here | *.W_q \
    *.codebooks *.res_centroids *.res_indices *.dense_weights *.Qidxs* *.Wscale *.codebook_id *.q_weight \
    *.q_scale_max *.q_groups *.trellis
~refused | part of a weight by AQLM, VPTQ, SpQR, EXL3 or HIGGS, which are not read here | *.codes *.centroids \
    *.indices *.outlier_* *.mcg *.mul1 *.tables *.tables2
refused | part of a weight by Nunchaku, QServe or QQQ, which are not read here | *.wscales *.wtscale *.wcscales \
    *.wzeros *.s1_scales *.s2_scales *.s2_zeros *.s1_szeros *.s_group *.s_channel
~refused | an addition to a weight of low rank (LoRA, SVDQuant, SDNQ) | *lora_[abAB]* *lora_up* *lora_down* \
    *lora_magnitude* *.svd_up *.svd_down *.proj_down *.proj_up
~refused | part of a sparse weight (compressed-tensors) | *.compressed *.bitmask *.row_offsets *.weight_meta *.B_meta
refused | part of a weight by a form of ComfyUI that is not read here | *weight_s_rel *weight_s_channel \
    *weight_codebook *weight_zeros *.weight_scale_cols
refused | a scale of a weight by TensorRT-LLM, which is not read here | *.weights_scaling_factor*
~refused | a factor of a weight by TensorRT-LLM, which is not read here | *.alpha
refused | a scale of a weight that its quantizer keeps (ModelOpt before export) | *.weight_quantizer.*
part | scales (DeepSeek-V3, transformers fp8) | *_scale_inv
part | a scale, a zero point or a shape of a weight | *weight_scale *scale_weight *weight_scale_2 \
    *weight_global_scale *weight_zero_point *.scales *.zero_points *.global_scale *weight_shape *weight_packed \
    *_proj_scale *_proj_scale_2 *comfy_quant *.w[123]_scale *.w13_scale *.w2_scale
~part | codes or scales (gpt-oss) | *_packed *_blocks *_scales
"""

#: The last parts of the names of weights that are not quantized, in what vLLM, transformers, diffusers and ComfyUI load
#: of published models. Patterns match the whole name.
_WEIGHTS = """
weight *.weight bias *.bias *norm norm* *norm.scale *norm.gamma *norm.beta *layernorm* *_norm *.norm.* *.gamma *.beta
*_bias *.b1 *.b2 *embed* *.pos_emb *_token *_tokens *latents *.query *.queries
*.A_log *.D *.dt_bias *.sinks *.attn_sink *.ape *.hc_*_fn *.hc_*_base *.hc_*_scale *.hc_head_fn *.hc_head_base
*.running_mean *.running_var *.weight_g *.weight_v *.original0 *.original1 *logit_scale *layer_scale *_scale_shift_table
*scale_shift_table *.modulation *.lambda_* *inv_freq *freqs_* *.rope.freqs *.layer_scalar *.router_scale
*.per_expert_scale *.time_decay *.time_faaaa *.time_maa_* *.conv_state *.gate_up_proj *.down_proj *.experts.w[123]
*.lm_head *.e_score_correction_bias *.temperature *.skip_scale *.learned_* *.latent* *.cls *.x_pad_token *.cap_pad_token
"""
#: Integers and truth values that are no codes.
_INTEGERS = """
*position_ids *token_type_ids *num_batches_tracked *relative_position_index *_index *.tid2eid *.eid2tid *attn_mask
*causal_mask *masked_bias *.attn.bias *.attention.bias *.version *.ids
"""


@dataclass(frozen=True)
class Companion:
    fate: Fate
    #: Whether the name alone says that a checkpoint is quantized.
    is_sign: bool
    what: str
    #: Shell wildcards, and the same as one pattern.
    names: tuple[str, ...]
    pattern: re.Pattern[str]


def _parsed() -> list[Companion]:
    rows = (line.split(" | ") for line in _TABLE.replace("\\\n", " ").strip().splitlines())
    parsed = ((fate, what, tuple(names.split())) for fate, what, names in rows)
    return [
        Companion(fate.lstrip("~"), fate[0] != "~", what, names, _pattern(names))  # type: ignore[arg-type]
        for fate, what, names in parsed
    ]


def _pattern(patterns: Iterable[str]) -> re.Pattern[str]:
    # Names of one part lie in no module.
    return re.compile("|".join(translate(one) for given in patterns for one in {given, given.removeprefix("*.")}))


COMPANIONS = _parsed()
_WEIGHT, _INTEGER = (_pattern(names.split()) for names in (_WEIGHTS, _INTEGERS))


@lru_cache(1 << 16)
def companion(name: str) -> Companion | None:
    """The row of a tensor that lies beside codes; None for any other name."""
    return next((row for row in COMPANIONS if row.pattern.match(name)), None)


def is_weight(name: str) -> bool:
    """Whether a tensor of wide floats is a weight by its name."""
    return _WEIGHT.match(name) is not None


def is_plain_cast(tensor: Tensor) -> bool:
    """Whether a tensor of a narrow type holds numbers by the metadata that gpucast writes for plain casts."""
    return isinstance(tensor, StoredTensor) and tensor.is_plain


def is_count(name: str) -> bool:
    """Whether integers are known to be no codes by their name."""
    return _INTEGER.match(name) is not None
