"""One typed section of params.yaml for each stage, in a file of the stage's name; `tree` joins them."""
