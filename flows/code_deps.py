"""Code dependencies of dvc.yaml, from the import graph: `python -m flows.code_deps [--write]`.

A helper that a stage imports but does not declare is served stale: the old result for the new code. So every
stage declares its module and all first-party modules below it; `make deps` writes them, a test compares.
"""

import io
import sys
from pathlib import Path

from tasks.__main__ import MODULES, STAGES
from tasks.kit.files import write_atomically

# What a stage starts by name, in processes of its own, where the import graph shows no edge.
STARTED_BY_NAME = {"train": ("tasks.model.worker",)}


def code_dependencies(stage: str) -> list[str]:
    """Files of a stage's module, of every first-party module that it imports, at any depth, and their packages."""
    import grimp

    graph = grimp.build_graph("tasks", include_external_packages=False)
    roots = (f"tasks.{MODULES.get(stage, stage)}", *STARTED_BY_NAME.get(stage, ()))
    modules = set(roots).union(*(graph.find_upstream_modules(root) for root in roots))
    for name in list(
        modules
    ):  # importing tasks.kit.files runs tasks/__init__.py and tasks/kit/__init__.py too
        parts = name.split(".")
        modules.update(".".join(parts[:n]) for n in range(1, len(parts)))
    packages = {m for m in graph.modules if graph.find_children(m)}
    return sorted(m.replace(".", "/") + ("/__init__.py" if m in packages else ".py") for m in modules)


def rewritten(text: str) -> str:
    """dvc.yaml's text with the code dependencies of every stage put right; comments stay."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    document = yaml.load(text)
    for stage in STAGES:
        declared = document["stages"][stage]
        data = [d for d in declared.get("deps", []) if not d.endswith(".py")]
        declared["deps"] = code_dependencies(stage) + data
    out = io.StringIO()
    yaml.dump(document, out)
    return out.getvalue()


def main(arguments: list[str]) -> int:
    """Compare, or with `--write` rewrite. Returns 1 when dvc.yaml is out of step."""
    path = Path("dvc.yaml")
    text = path.read_text(encoding="utf-8")
    right = rewritten(text)
    if right == text:
        return 0
    if "--write" in arguments:
        write_atomically(path, right.encode())
        return 0
    sys.stderr.write("dvc.yaml's code dependencies differ from the import graph: run `make deps`\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
