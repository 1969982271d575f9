"""A builder for every encoder of the table, as `DINOv2S14` for `build("dinov2/S14")`."""

from keras_vit.builders import build, builders_by
from keras_vit.config.encoders import ENCODERS

_builder = builders_by(build, "encoder", ENCODERS.__getitem__)

CLIPB16 = _builder("clip/B16")
CLIPB32 = _builder("clip/B32")
CLIPL14 = _builder("clip/L14")
CLIPH14 = _builder("clip/H14")
CLIPg14 = _builder("clip/g14")
CLIPG14 = _builder("clip/G14")
CLIPB16plus = _builder("clip/B16plus")
TinyCLIP8M16 = _builder("tinyclip/8M16")
TinyCLIP39M16 = _builder("tinyclip/39M16")
TinyCLIP40M32 = _builder("tinyclip/40M32")
TinyCLIP61M32 = _builder("tinyclip/61M32")
SigLIPB16 = _builder("siglip/B16")
SigLIPB32 = _builder("siglip/B32")
SigLIPL16 = _builder("siglip/L16")
SigLIPSo400m14 = _builder("siglip/So400m14")
SigLIPSo400m16 = _builder("siglip/So400m16")
SigLIPg16 = _builder("siglip/g16")
DINOS8 = _builder("dino/S8")
DINOS16 = _builder("dino/S16")
DINOB8 = _builder("dino/B8")
DINOB16 = _builder("dino/B16")
MAEB16 = _builder("mae/B16")
MAEL16 = _builder("mae/L16")
MAEH14 = _builder("mae/H14")
MSNS16 = _builder("msn/S16")
MSNB16 = _builder("msn/B16")
MSNL16 = _builder("msn/L16")
IJEPAH14 = _builder("ijepa/H14")
IJEPAH16 = _builder("ijepa/H16")
IJEPAg16 = _builder("ijepa/g16")
DINOv2S14 = _builder("dinov2/S14")
DINOv2B14 = _builder("dinov2/B14")
DINOv2L14 = _builder("dinov2/L14")
DINOv2g14 = _builder("dinov2/g14")
FrancaB14 = _builder("franca/B14")
FrancaL14 = _builder("franca/L14")
Francag14 = _builder("franca/g14")
DeiT3S16 = _builder("deit3/S16")
DeiT3M16 = _builder("deit3/M16")
DeiT3B16 = _builder("deit3/B16")
DeiT3L16 = _builder("deit3/L16")
DeiT3H14 = _builder("deit3/H14")
InternViT300M14 = _builder("internvit/300M14")
SBBwee16 = _builder("sbb/wee16")
SBBlittle16 = _builder("sbb/little16")
SBBmedium16 = _builder("sbb/medium16")
SBBmediumd16 = _builder("sbb/mediumd16")
SBBbetwixt16 = _builder("sbb/betwixt16")
SBBso150m16 = _builder("sbb/so150m16")
SBBso150m2x16 = _builder("sbb/so150m2x16")

__all__ = [
    "CLIPB16",
    "CLIPB32",
    "CLIPL14",
    "CLIPH14",
    "CLIPg14",
    "CLIPG14",
    "CLIPB16plus",
    "TinyCLIP8M16",
    "TinyCLIP39M16",
    "TinyCLIP40M32",
    "TinyCLIP61M32",
    "SigLIPB16",
    "SigLIPB32",
    "SigLIPL16",
    "SigLIPSo400m14",
    "SigLIPSo400m16",
    "SigLIPg16",
    "DINOS8",
    "DINOS16",
    "DINOB8",
    "DINOB16",
    "MAEB16",
    "MAEL16",
    "MAEH14",
    "MSNS16",
    "MSNB16",
    "MSNL16",
    "IJEPAH14",
    "IJEPAH16",
    "IJEPAg16",
    "DINOv2S14",
    "DINOv2B14",
    "DINOv2L14",
    "DINOv2g14",
    "FrancaB14",
    "FrancaL14",
    "Francag14",
    "DeiT3S16",
    "DeiT3M16",
    "DeiT3B16",
    "DeiT3L16",
    "DeiT3H14",
    "InternViT300M14",
    "SBBwee16",
    "SBBlittle16",
    "SBBmedium16",
    "SBBmediumd16",
    "SBBbetwixt16",
    "SBBso150m16",
    "SBBso150m2x16",
]
