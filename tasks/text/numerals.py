"""Numbers as people read them, each with its unit; what is absent says so."""

import math

NOT_MEASURED = "not measured"
Number = int | float | None


def count(value: Number, unit: str = "") -> str:
    """12345 -> `12,345`; with `unit`: `12,345 tokens`."""
    return _with_unit(value, ",.0f", unit)


def decimal(value: Number, digits: int = 3, unit: str = "") -> str:
    """A fixed number of decimals: 4.0123 -> `4.012 nats/token`."""
    return _with_unit(value, f",.{digits}f", unit)


def measure(value: Number, unit: str = "") -> str:
    """Four significant digits for figures of any size: 2047.6 -> `2,048`; 41.234 -> `41.23`; 1e-7 -> `1.000e-07`."""
    if value is None or not math.isfinite(value) or value == 0:
        return _with_unit(value, ",.0f", unit)
    size = abs(value)
    if size >= 1e12 or size < 1e-4:
        return _with_unit(value, ".3e", unit)
    return _with_unit(value, f",.{max(0, 3 - math.floor(math.log10(size)))}f", unit)


def share(value: Number, digits: int = 1, signed: bool = False) -> str:
    """0.1234 -> `12.3 %`."""
    return _with_unit(None if value is None else value * 100, f"{'+' if signed else ''},.{digits}f", "%")


def share_of(part: Number, whole: Number) -> str:
    """Part of a whole as a percentage; a whole of nothing has no parts."""
    if part is None or whole is None:
        return NOT_MEASURED
    return share(part / whole) if whole else "–"


def size(value: Number) -> str:
    """Bytes in decimal units: 53123456 -> `53.12 MB`."""
    if value is None or not math.isfinite(value):
        return count(value)
    scaled, units = float(value), iter(("B", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while abs(scaled) >= 1000 and unit != "TB":
        scaled, unit = scaled / 1000, next(units)
    return f"{scaled:,.0f} B" if unit == "B" else f"{scaled:,.2f} {unit}"


def duration(value: Number) -> str:
    """Seconds as `4.2 s`, `3 min 05 s` or `2 h 07 min`."""
    if value is None or not math.isfinite(value):
        return count(value)
    if value < 59.95:
        return f"{value:.1f} s"
    seconds = round(value)
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02} min"


def interval(bounds: tuple[float, float] | None) -> str:
    """`40.1 to 42.7`: the two ends of an interval."""
    return NOT_MEASURED if bounds is None else f"{measure(bounds[0])} to {measure(bounds[1])}"


def _with_unit(value: Number, form: str, unit: str) -> str:
    if value is None:
        return NOT_MEASURED
    if not math.isfinite(value):
        return "not finite"
    return f"{value:{form}}{' ' + unit if unit else ''}"
