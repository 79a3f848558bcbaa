"""The compose file and what it says about secrets and ports."""

import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
COMPOSE = ROOT / "infra" / "compose.yaml"


def test_the_compose_file_fits_its_schema() -> None:
    command = [
        str(Path(sys.executable).parent / "check-jsonschema"),
        "--builtin-schema",
        "vendor.compose-spec",
    ]
    result = subprocess.run([*command, str(COMPOSE)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr


def test_ports_are_on_loopback_and_secrets_have_no_default() -> None:
    services = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    for name, service in services.items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name}: {port}"
        for variable, value in service.get("environment", {}).items():
            if "PASSWORD" in variable or "SECRET" in variable:
                assert value.startswith(f"${{{variable}:?"), f"{name}: {variable}"
