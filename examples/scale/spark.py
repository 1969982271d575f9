"""Features of photos by Spark: spark-submit spark.py LIST MODEL OUT. The same command goes on after a kill."""

import sys
import uuid
from pathlib import Path

from pyarrow import concat_tables, parquet, table
from pyspark.sql import SparkSession

import keras_vit

PART = 1000  # photos, whose paths are the lines of LIST
names, out = Path(sys.argv[1]).read_text().splitlines(), Path(sys.argv[3]).absolute()
embedder = keras_vit.Embedder(sys.argv[2], threads=1)


def write_parts(batches):
    for batch in batches:
        for part, photos in zip(batch["part"], batch["photos"], strict=True):
            if Path(part).exists():  # by a try of this task that was killed
                continue
            found, temporary = embedder(photos), f"{part}.{uuid.uuid4()}"
            columns = {"photo": photos, "status": found["status"], "features": list(found["features"])}
            parquet.write_table(table(columns), temporary)
            Path(temporary).rename(part)  # so a part is whole, or it is not there
        yield batch[["part"]]


out.mkdir(parents=True, exist_ok=True)
parts = {str(out / f"part-{row // PART:05d}.parquet"): names[row : row + PART] for row in range(0, len(names), PART)}
missing = [(part, photos) for part, photos in parts.items() if not Path(part).exists()]
spark = SparkSession.builder.getOrCreate()
rows = spark.createDataFrame(missing, "part string, photos array<string>")
rows.repartition(spark.sparkContext.defaultParallelism).mapInPandas(write_parts, "part string").collect()
done = concat_tables(parquet.read_table(part, columns=["photo", "status"]) for part in parts)
if done["photo"].to_pylist() != names:
    sys.exit(f"{out} has parts of another list. Choose another folder.")
print(f"{len(names):,} rows, {len(names) - done['status'].to_pylist().count('ok'):,} of them of broken photos")
