"""Photos in shards: tars as WebDataset writes them, TFRecords and Parquet, read by an index of slices."""
