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
SBBbase16 = _builder("sbb/base16")
SBBbetwixt16 = _builder("sbb/betwixt16")
SBBso150m16 = _builder("sbb/so150m16")
SBBso150m2x16 = _builder("sbb/so150m2x16")
DINOv3S16 = _builder("dinov3/S16")
DINOv3B16 = _builder("dinov3/B16")
DINOv3L16 = _builder("dinov3/L16")
DINOv3Splus16 = _builder("dinov3/Splus16")
DINOv3Hplus16 = _builder("dinov3/Hplus16")
DINOv37B16 = _builder("dinov3/7B16")
EUPETi16 = _builder("eupe/Ti16")
EUPES16 = _builder("eupe/S16")
EUPEB16 = _builder("eupe/B16")
LingBotS16 = _builder("lingbot/S16")
LingBotB16 = _builder("lingbot/B16")
LingBotL16 = _builder("lingbot/L16")
LingBotg16 = _builder("lingbot/g16")
Sapiens2B16 = _builder("sapiens2/B16")
Sapiens2L16 = _builder("sapiens2/L16")
Sapiens2H16 = _builder("sapiens2/H16")
Sapiens2g16 = _builder("sapiens2/g16")
Sapiens25B16 = _builder("sapiens2/5B16")
RoPEViTS16 = _builder("rope_vit/S16")
RoPEViTB16 = _builder("rope_vit/B16")
RoPEViTL16 = _builder("rope_vit/L16")
EVAL14 = _builder("eva/L14")
EVAg14 = _builder("eva/g14")
EVA02Ti14 = _builder("eva02/Ti14")
EVA02S14 = _builder("eva02/S14")
EVA02B14 = _builder("eva02/B14")
EVA02L14 = _builder("eva02/L14")
EVACLIPB16 = _builder("eva_clip/B16")
EVACLIPL14 = _builder("eva_clip/L14")
EVACLIPg14 = _builder("eva_clip/g14")
EVACLIPE14 = _builder("eva_clip/E14")
BEiTB16 = _builder("beit/B16")
BEiTL16 = _builder("beit/L16")
BEiTv2B16 = _builder("beitv2/B16")
BEiTv2L16 = _builder("beitv2/L16")
BEiT3B16 = _builder("beit3/B16")
BEiT3L16 = _builder("beit3/L16")
AIMv2L14 = _builder("aimv2/L14")
AIMv2H14 = _builder("aimv2/H14")
AIMv21B14 = _builder("aimv2/1B14")
AIMv23B14 = _builder("aimv2/3B14")
PECoreTi16 = _builder("pe_core/Ti16")
PECoreS16 = _builder("pe_core/S16")
PECoreB16 = _builder("pe_core/B16")
PECoreL14 = _builder("pe_core/L14")
PECoreG14 = _builder("pe_core/G14")
PELangL14 = _builder("pe_lang/L14")
PELangG14 = _builder("pe_lang/G14")
PESpatialTi16 = _builder("pe_spatial/Ti16")
PESpatialS16 = _builder("pe_spatial/S16")
PESpatialB16 = _builder("pe_spatial/B16")
PESpatialL14 = _builder("pe_spatial/L14")
PESpatialG14 = _builder("pe_spatial/G14")
TIPSS14 = _builder("tips/S14")
TIPSB14 = _builder("tips/B14")
TIPSL14 = _builder("tips/L14")
TIPSSo400m14 = _builder("tips/So400m14")
TIPSg14 = _builder("tips/g14")
PixioB16 = _builder("pixio/B16")
PixioL16 = _builder("pixio/L16")
PixioH16 = _builder("pixio/H16")
RADIOB16 = _builder("radio/B16")
RADIOL16 = _builder("radio/L16")
RADIOH16 = _builder("radio/H16")
RADIOSo400m16 = _builder("radio/So400m16")
RADIOg16 = _builder("radio/g16")

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
    "SBBbase16",
    "SBBbetwixt16",
    "SBBso150m16",
    "SBBso150m2x16",
    "DINOv3S16",
    "DINOv3B16",
    "DINOv3L16",
    "DINOv3Splus16",
    "DINOv3Hplus16",
    "DINOv37B16",
    "EUPETi16",
    "EUPES16",
    "EUPEB16",
    "LingBotS16",
    "LingBotB16",
    "LingBotL16",
    "LingBotg16",
    "Sapiens2B16",
    "Sapiens2L16",
    "Sapiens2H16",
    "Sapiens2g16",
    "Sapiens25B16",
    "RoPEViTS16",
    "RoPEViTB16",
    "RoPEViTL16",
    "EVAL14",
    "EVAg14",
    "EVA02Ti14",
    "EVA02S14",
    "EVA02B14",
    "EVA02L14",
    "EVACLIPB16",
    "EVACLIPL14",
    "EVACLIPg14",
    "EVACLIPE14",
    "BEiTB16",
    "BEiTL16",
    "BEiTv2B16",
    "BEiTv2L16",
    "BEiT3B16",
    "BEiT3L16",
    "AIMv2L14",
    "AIMv2H14",
    "AIMv21B14",
    "AIMv23B14",
    "PECoreTi16",
    "PECoreS16",
    "PECoreB16",
    "PECoreL14",
    "PECoreG14",
    "PELangL14",
    "PELangG14",
    "PESpatialTi16",
    "PESpatialS16",
    "PESpatialB16",
    "PESpatialL14",
    "PESpatialG14",
    "TIPSS14",
    "TIPSB14",
    "TIPSL14",
    "TIPSSo400m14",
    "TIPSg14",
    "PixioB16",
    "PixioL16",
    "PixioH16",
    "RADIOB16",
    "RADIOL16",
    "RADIOH16",
    "RADIOSo400m16",
    "RADIOg16",
]
