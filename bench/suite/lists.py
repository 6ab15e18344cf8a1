# SPDX-License-Identifier: Apache-2.0
"""The models of PyTorch's own compiler benchmark (benchmarks/dynamo), by its names.

A name has the batch size of its list and the number by which that benchmark divides it. The lists
are those of 46 Hugging Face models and 61 of timm; since then names have been dropped from both.
What cannot be run here stands in ``APART`` with the reason.
"""

from __future__ import annotations

import dataclasses

_HF = """
AlbertForMaskedLM 8/2, AlbertForQuestionAnswering 8/2, AllenaiLongformerBase 8/2,
BartForCausalLM 8/2, BartForConditionalGeneration 4/2, BertForMaskedLM 32/2,
BertForQuestionAnswering 32/2, BlenderbotForCausalLM 32/8, BlenderbotSmallForCausalLM 256/4,
BlenderbotSmallForConditionalGeneration 128/2, CamemBert 32/2, DebertaForMaskedLM 32/4,
DebertaForQuestionAnswering 32/2, DebertaV2ForMaskedLM 8/4, DebertaV2ForQuestionAnswering 8/8,
DistilBertForMaskedLM 256/2, DistilBertForQuestionAnswering 512/2, DistillGPT2 32/2,
ElectraForCausalLM 64/2, ElectraForQuestionAnswering 128/2, GPT2ForSequenceClassification 8/2,
GoogleFnet 32/2, LayoutLMForMaskedLM 32/2, LayoutLMForSequenceClassification 32/2,
M2M100ForConditionalGeneration 64/4, MBartForCausalLM 8/2, MBartForConditionalGeneration 4/2,
MT5ForConditionalGeneration 32/2, MegatronBertForCausalLM 16/4,
MegatronBertForQuestionAnswering 16/2, MobileBertForMaskedLM 256/2,
MobileBertForQuestionAnswering 256/2, OPTForCausalLM 4/2, PLBartForCausalLM 16/2,
PLBartForConditionalGeneration 8/2, PegasusForCausalLM 128/4, PegasusForConditionalGeneration 64/2,
RobertaForCausalLM 32/2, RobertaForQuestionAnswering 32/2, Speech2Text2ForCausalLM 1024/4,
T5ForConditionalGeneration 8/2, T5Small 8/2, TrOCRForCausalLM 64/2, XGLMForCausalLM 32/4,
XLNetLMHeadModel 16/2, YituTechConvBert 32/2
"""
_TIMM = """
adv_inception_v3 128, beit_base_patch16_224 128/2, botnet26t_256 128, cait_m36_384 4/8,
coat_lite_mini 128, convit_base 128/2, convmixer_768_32 64/2, convnext_base 128/2,
crossvit_9_240 256, cspdarknet53 128/2, deit_base_distilled_patch16_224 128/2, dla102 128,
dm_nfnet_f0 128, dpn107 64/2, eca_botnext26ts_256 128, eca_halonext26ts 128, ese_vovnet19b_dw 256,
fbnetc_100 512, fbnetv3_b 256, gernet_l 128, ghostnet_100 512, gluon_inception_v3 256,
gmixer_24_224 128, gmlp_s16_224 128, hrnet_w18 128, inception_v3 128, jx_nest_base 128/4,
lcnet_050 256, levit_128 1024, mixer_b16_224 128, mixnet_l 128, mnasnet_100 512,
mobilenetv2_100 128, mobilenetv3_large_100 512, mobilevit_s 128/2, nfnet_l0 128, pit_b_224 64/2,
pnasnet5large 32/2, poolformer_m36 128/2, regnety_002 1024, repvgg_a2 128, res2net101_26w_4s 128/2,
res2net50_14w_8s 128, res2next50 128, resmlp_12_224 128, resnest101e 128/2, rexnet_100 256,
sebotnet33ts_256 64/2, selecsls42b 128, spnasnet_100 128, swin_base_patch4_window7_224 128/2,
swsl_resnext101_32x16d 64/2, tf_efficientnet_b0 128, tf_mixnet_l 128, tinynet_a 128,
tnt_s_patch16_224 128, twins_pcpvt_base 128/2, visformer_small 128, vit_base_patch16_224 128/2,
volo_d1_224 128/2, xcit_large_24_p8_224 16/4
"""
_TORCHBENCH = """
alexnet 1024, densenet121 64, mnasnet1_0 256, mobilenet_v2 128, mobilenet_v3_large 256,
resnet18 512, resnet50 128, resnext50_32x4d 128, shufflenet_v2_x1_0 512, squeezenet1_1 512,
vgg16 128
"""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A model of a list; ``batch`` is what the benchmark runs it with."""

    list: str
    name: str
    batch: int


def _entries(of: str, text: str) -> dict[str, Entry]:
    found = {}
    for name, size in (item.split() for item in text.replace("\n", " ").split(",")):
        listed, _, divisor = size.partition("/")
        found[name] = Entry(of, name, max(int(listed) // int(divisor or 1), 1))
    return found


LISTS = {"hf": _entries("hf", _HF), "timm": _entries("timm", _TIMM),
         "torchbench": _entries("torchbench", _TORCHBENCH)}
# What the benchmark judges results with: large enough for batch norm.
SMALL_BATCH = {"hf": 1, "timm": 8, "torchbench": 4}
# Small enough for a CPU; run with --device cpu where no models are chosen.
CPU_SUBSET = ("BlenderbotSmallForCausalLM", "DistilBertForQuestionAnswering",
              "ElectraForCausalLM", "MobileBertForMaskedLM", "lcnet_050", "mobilenetv3_large_100",
              "regnety_002", "resmlp_12_224")

_SKIPPED = "the benchmark's own list of what is skipped has it"
_OWN_CODE = "its code is part of TorchBench, which is no package"
APART = {
    "hf": dict.fromkeys((
        "BlenderbotForConditionalGeneration", "GPTJForCausalLM", "GPTJForQuestionAnswering",
        "GPTNeoForCausalLM", "GPTNeoForSequenceClassification"), _SKIPPED),
    "timm": {},
    "torchbench": dict.fromkeys((
        "BERT_pytorch", "Background_Matting", "LearningToPaint", "dcgan",
        "nvidia_deeprecommender", "pytorch_unet"), _OWN_CODE),
}

# How near a result has to be: the benchmark's names with another tolerance than their list's.
HF_TRAINING = {"AlbertForQuestionAnswering": 2e-2, "BertForMaskedLM": 2e-2,
               "MT5ForConditionalGeneration": 2e-2}
HF_INFERENCE = {"GPT2ForSequenceClassification": 4e-3, "RobertaForQuestionAnswering": 4e-3}
HF_INFERENCE_CPU = {"GPT2ForSequenceClassification": 5e-3,
                    "LayoutLMForSequenceClassification": 5e-3}
TIMM_TRAINING = {
    "beit_base_patch16_224": 16e-2,
    **dict.fromkeys(("deit_base_distilled_patch16_224", "levit_128", "sebotnet33ts_256"), 8e-2),
    **dict.fromkeys(("cspdarknet53", "fbnetv3_b", "gmixer_24_224", "hrnet_w18", "inception_v3",
                     "mixer_b16_224", "mobilenetv3_large_100", "selecsls42b"), 4e-2)}
TORCHBENCH_LOOSE = {"shufflenet_v2_x1_0": 8e-2, "squeezenet1_1": 8e-2}
# Of which small tensors may be further from the reference in double precision.
LOOSE_SMALL_TENSORS = {"BertForMaskedLM", "GPT2ForSequenceClassification", "inception_v3",
                       "mobilenetv3_large_100"}
SCALED_LOSS = {"ese_vovnet19b_dw", "fbnetc_100", "mnasnet_100", "mobilevit_s", "sebotnet33ts_256"}
SINGLE_PRECISION = {"GoogleFnet"}
AUTOCAST_ALWAYS = {"convit_base", "xcit_large_24_p8_224"}


def tolerance(entry: Entry, kind: str, device: str, precision: str) -> float:
    """How far an element may be away, where the reference in double precision tells nothing."""
    if entry.list == "hf":
        if kind == "training":
            return HF_TRAINING.get(entry.name, 1e-2)
        named = {**HF_INFERENCE, **(HF_INFERENCE_CPU if device == "cpu" else {})}
        return named.get(entry.name, 1e-3)
    if entry.list == "timm":
        return TIMM_TRAINING.get(entry.name, 1e-2) if kind == "training" else 1e-3
    if precision == "amp" or (kind == "training" and device == "cuda"):
        return TORCHBENCH_LOOSE.get(entry.name, 1e-3)
    return 1e-4


def precision_of(entry: Entry, kind: str, device: str) -> str:
    """What the benchmark's dashboard runs with: on a GPU autocast for training and weights in
    bfloat16 for inference, on a CPU single precision."""
    if device == "cpu" or entry.name in SINGLE_PRECISION:
        return "float32"
    return "amp" if kind == "training" or entry.name in AUTOCAST_ALWAYS else "bfloat16"
