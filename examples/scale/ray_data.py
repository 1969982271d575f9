"""Features of photos by Ray Data: python ray_data.py LIST MODEL OUT. The same command goes on after a kill."""

import sys
import uuid
from pathlib import Path

import ray
from pyarrow import concat_tables, parquet, table

import keras_vit

PART = 1000  # photos, whose paths are the lines of LIST


class WriteParts(keras_vit.Embedder):
    def __call__(self, batch):
        for part, photos in zip(batch["part"], batch["photos"], strict=True):
            found, temporary = super().__call__(photos), f"{part}.{uuid.uuid4()}"
            columns = {"photo": photos, "status": found["status"], "features": list(found["features"])}
            parquet.write_table(table(columns), temporary)
            Path(temporary).rename(part)  # so a part is whole, or it is not there
        return {"part": batch["part"]}


names, out = Path(sys.argv[1]).read_text().splitlines(), Path(sys.argv[3]).absolute()
out.mkdir(parents=True, exist_ok=True)
parts = {str(out / f"part-{row // PART:05d}.parquet"): names[row : row + PART] for row in range(0, len(names), PART)}
missing = [{"part": part, "photos": photos} for part, photos in parts.items() if not Path(part).exists()]
ray.init()
if missing:
    model, workers = keras_vit.Embedder(sys.argv[2]).model, int(ray.cluster_resources()["CPU"])
    pool, options = ray.data.ActorPoolStrategy(size=workers), {"model": model, "threads": 1}
    rows = ray.data.from_items(missing, override_num_blocks=len(missing))
    rows.map_batches(WriteParts, batch_size=1, compute=pool, fn_constructor_kwargs=options).materialize()
done = concat_tables(parquet.read_table(part, columns=["photo", "status"]) for part in parts)
if done["photo"].to_pylist() != names:
    sys.exit(f"{out} has parts of another list. Choose another folder.")
print(f"{len(names):,} rows, {len(names) - done['status'].to_pylist().count('ok'):,} of them of broken photos")
