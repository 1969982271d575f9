"""Names the classes of photos, as a script with timm does: the folder of a model first, then the photos.

timm's transforms need torchvision, of which a CPU-only torch has no build. Their steps for a crop stand here, by
Pillow as there: so this imports less than such a script.
"""

import json
import math
import sys

from torch_peers import stand_in

stand_in()

import numpy as np  # noqa: E402
import timm  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402

_TOP = 5  # classes to name
_KERNELS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


def main(folder, *photos):
    """Prints what `keras-vit predict --json` does, with numbers in place of names."""
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    facts = timm.data.resolve_model_data_config(model)
    found = []
    with torch.inference_mode():
        for photo in photos:
            chances = model(prepared(photo, facts)[None]).softmax(-1)[0].topk(_TOP)
            pairs = zip(chances.indices.tolist(), chances.values.tolist(), strict=True)
            named = [{"class": number, "probability": chance} for number, chance in pairs]
            found.append({"image": photo, "predictions": named})
    print(json.dumps(found))


def prepared(photo, facts):
    """`(3, H, W)`: resized to cover, the centre cut out, scaled."""
    side = facts["input_size"][-1]
    image = Image.open(photo).convert("RGB")
    short = math.floor(side / facts["crop_pct"])
    size = [int(short * length / min(image.size)) for length in image.size]
    image = image.resize(size, _KERNELS[facts["interpolation"]])
    left, top = (round((length - side) / 2) for length in size)
    image = image.crop((left, top, left + side, top + side))
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255)
    mean, std = (torch.tensor(facts[name])[:, None, None] for name in ("mean", "std"))
    return pixels.sub(mean).div(std)


if __name__ == "__main__":
    main(*sys.argv[1:])
