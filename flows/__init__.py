"""How the stages are planned, scheduled and watched: the only package that imports Prefect."""
