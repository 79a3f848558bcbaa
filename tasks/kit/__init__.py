"""What every stage stands on: errors, paths, files, shards, processes, the object store, tracking."""
