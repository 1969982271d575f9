"""Photos in shards: tars as WebDataset writes them, TFRecords, Parquet and ArrayRecord, read by an index of slices."""
