"""The gate before anything is spent on training: Great Expectations over what all data stages made.

Reads the figures of ingest, clean, dedupe, tokenize and split, data/dedupe/documents, data/tokenize/tokenizer,
data/split, and the reviewed suites in data/expectations, whose `{"$PARAMETER": name}` are filled from params.yaml.
Writes data/validate/data_docs (HTML, to be opened offline). Drops nothing.
An expectation that fails, or cannot be computed, stops the pipeline here and is named.
"""

import logging
import math
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.kit.errors import GateError, InputError
from tasks.kit.files import read_json
from tasks.kit.paths import Paths
from tasks.kit.processes import switch_telemetry_off
from tasks.model.gate_tables import figures_table, placements_table, survivors_table
from tasks.model.token_files import read_manifest
from tasks.params.split import SplitParams
from tasks.params.validate import ValidateParams
from tasks.text.data_docs import Verdict, make_offline
from tasks.text.sides import SIDES

if TYPE_CHECKING:
    import pandas

logger = logging.getLogger("train_llm")

SUITES = ("survivors", "placements", "figures")
_SHOWN = 5  # values of a failed expectation in the message


@dataclass(frozen=True)
class ExpectationFigures:
    """One expectation: what was seen and what was asked for, as JSON-able values."""

    name: str
    suite: str
    success: bool
    observed: Any
    expected: Any


@dataclass(frozen=True)
class ValidateFigures:
    """The verdict, with every expectation in the order of the suites."""

    success: bool
    documents: int
    expectations: list[ExpectationFigures]


def validate(params: ValidateParams, sides: SplitParams, paths: Paths) -> ValidateFigures:
    """Build the tables, judge them, write the Data Docs.

    Raises:
        GateError: names each expectation that is not met, with observed and expected values.
        InputError: a file that the gate reads is missing or broken.
    """
    survivors = survivors_table(paths.dedupe_documents)
    placements = placements_table(paths.split, survivors)
    tables = {
        "survivors": survivors,
        "placements": placements,
        "figures": figures_table(paths, len(survivors)),
    }
    parameters = _parameters(params, sides, paths)
    suites = {name: _filled_suite(paths.expectations / f"{name}.json", parameters) for name in SUITES}
    results = _judge(suites, tables, paths.data_docs)
    _stop_if_failed(results, paths.data_docs)
    return ValidateFigures(True, len(survivors), results)


def _parameters(params: ValidateParams, sides: SplitParams, paths: Paths) -> dict[str, float]:
    """Values of `$PARAMETER`: the section `validate`, and what follows from it and the data."""
    values: dict[str, float] = params.model_dump()
    values["largest_token_id"] = read_manifest(paths.split)["vocabulary_size"] - 1
    clusters = sum(side["clusters"] for side in read_json(paths.metrics("split"))["sides"].values())
    for side in SIDES:
        share = getattr(sides, side)
        # Each cluster is a draw, so 50 of them stray far from a share: 4 standard deviations fail once in 16,000.
        slack = params.split_tolerance + 4 * math.sqrt(share * (1 - share) / max(clusters, 1))
        values[f"{side}_share_low"] = round(max(share - slack, 0), 6)
        values[f"{side}_share_high"] = round(min(share + slack, 1), 6)
    return values


def _filled_suite(path: Path, parameters: dict[str, float]) -> list[dict[str, Any]]:
    """The expectations of a suite, its `{"$PARAMETER": name}` replaced."""
    try:
        suite = read_json(path)
    except (FileNotFoundError, ValueError) as error:
        raise InputError(
            f"{path}: the reviewed suite cannot be read ({error}); restore it with git"
        ) from None

    def fill(value: Any) -> Any:
        if isinstance(value, dict) and "$PARAMETER" in value:
            name = value["$PARAMETER"]
            if name not in parameters:
                raise InputError(f"{path}: no parameter {name!r}; there are {', '.join(sorted(parameters))}")
            return parameters[name]
        return value

    return [
        {**expectation, "kwargs": {key: fill(value) for key, value in expectation["kwargs"].items()}}
        for expectation in suite["expectations"]
    ]


def _judge(
    suites: dict[str, list[dict[str, Any]]], tables: dict[str, "pandas.DataFrame"], data_docs: Path
) -> list[ExpectationFigures]:
    """Run every suite on its table and write the Data Docs, whatever the verdict."""
    switch_telemetry_off()
    import great_expectations as gx
    from great_expectations.core.run_identifier import RunIdentifier
    from great_expectations.data_context.types.base import DataContextConfig, InMemoryStoreBackendDefaults

    results: list[ExpectationFigures] = []
    with tempfile.TemporaryDirectory(prefix="data-docs-") as folder:
        in_memory = DataContextConfig(
            store_backend_defaults=InMemoryStoreBackendDefaults(), analytics_enabled=False
        )
        context = gx.get_context(mode="ephemeral", project_config=in_memory)
        context.variables.progress_bars = {"globally": False, "metric_calculations": False}
        backend = {"class_name": "TupleFilesystemStoreBackend", "base_directory": folder}
        site = {"class_name": "SiteBuilder", "show_how_to_buttons": False, "store_backend": backend}
        context.add_data_docs_site(
            "gate", {**site, "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"}}
        )
        source = context.data_sources.add_pandas("train-llm")
        for name, expectations in suites.items():
            batch = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("all")
            suite = context.suites.add(
                gx.ExpectationSuite(name=name, expectations=_configurations(expectations))
            )
            definition = gx.ValidationDefinition(name=name, data=batch, suite=suite)
            run = context.validation_definitions.add(definition).run(
                batch_parameters={"dataframe": tables[name]},
                result_format={"result_format": "BASIC", "partial_unexpected_count": _SHOWN},
                run_id=RunIdentifier(run_name="gate"),
            )
            results += _results(name, expectations, run.results)
        context.build_data_docs(site_names=["gate"])
        make_offline(
            Path(folder), [_verdict(name, results) for name in suites], [str(Path.cwd()), sys.prefix]
        )
        shutil.rmtree(data_docs, ignore_errors=True)
        shutil.copytree(folder, data_docs)
    return results


def _configurations(expectations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "type": expectation["type"],
            "kwargs": expectation["kwargs"],
            "meta": {
                "name": expectation["name"],
                "notes": {"format": "string", "content": [expectation["notes"]]},
            },
        }
        for expectation in expectations
    ]


def _results(
    suite: str, expectations: Sequence[dict[str, Any]], results: Sequence[Any]
) -> list[ExpectationFigures]:
    """In the order of the suite; one without a result, or whose computation raised, has failed."""
    by_name = {result.expectation_config.meta["name"]: result.to_json_dict() for result in results}
    figures = []
    for expectation in expectations:
        name, kwargs = expectation["name"], expectation["kwargs"]
        result = by_name.get(
            name, {"success": False, "result": {}, "exception_info": {"raised_exception": True}}
        )
        raised = _exception(result["exception_info"])
        success = bool(result["success"]) and raised is None
        observed = f"could not be computed: {raised}" if raised else _observed(result["result"])
        expected = {key: value for key, value in kwargs.items() if key != "column"}
        expected = expected or expectation["type"].removeprefix("expect_column_").replace("_", " ")
        figures.append(ExpectationFigures(name, suite, success, observed, expected))
    return figures


def _exception(information: dict[str, Any]) -> str | None:
    """Message of what an expectation raised; Great Expectations nests it by metric, or not."""
    entries = [information] if "raised_exception" in information else list(information.values())
    for entry in entries:
        if entry["raised_exception"]:
            return str(entry.get("exception_message") or "no result")
    return None


def _observed(result: dict[str, Any]) -> Any:
    if "observed_value" in result:
        return result["observed_value"]
    count = result.get("unexpected_count", 0)
    if not count:
        return f"{result.get('element_count', 0)} values, all as expected"
    shown = ", ".join(str(value) for value in dict.fromkeys(result.get("partial_unexpected_list", [])))
    return (
        f"{count} of {result['element_count']} values: {shown}"
        if shown
        else f"{count} of {result['element_count']}"
    )


def _verdict(suite: str, results: Sequence[ExpectationFigures]) -> Verdict:
    own = [result.success for result in results if result.suite == suite]
    return Verdict(suite, bool(own) and all(own), sum(own), len(own))


def _stop_if_failed(results: Sequence[ExpectationFigures], data_docs: Path) -> None:
    failed = [result for result in results if not result.success]
    if failed or not results:
        lines = [f"  {r.suite}.{r.name}: observed {r.observed}, expected {r.expected}" for r in failed]
        raise GateError(
            f"{len(failed)} of {len(results)} expectations are not met, so nothing is trained:\n"
            + "\n".join(lines)
            + f"\nSee {data_docs / 'index.html'}; limits are in params.yaml (validate), suites in data/expectations"
        )
    logger.info("all %d expectations are met", len(results))
