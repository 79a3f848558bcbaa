"""The stages of train-llm, one file each, and the parts that they share (`kit`, `params`, `text`, `model`)."""
