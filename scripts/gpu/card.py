"""What nvidia-smi says of the machine's GPU."""

import subprocess

CLOCKS = {"sm_mhz": "clocks.sm", "memory_mhz": "clocks.mem", "temperature_c": "temperature.gpu", "power_w": "power.draw"}


def query(*names):
    """Values by nvidia-smi's own names of the first GPU; empty where there is no driver or no GPU."""
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=" + ",".join(names), "--format=csv,noheader,nounits"], capture_output=True, text=True,
                             stdin=subprocess.DEVNULL, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    lines = out.stdout.strip().splitlines()
    values = [v.strip() for v in lines[0].split(",")] if out.returncode == 0 and lines else []
    return dict(zip(names, values)) if len(values) == len(names) else {}


def number(text):
    """A number that nvidia-smi printed, None where it has none."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def clocks():
    """Clocks, temperature and power by the names of the JSON; what the driver does not tell is left out."""
    found = query(*CLOCKS.values())
    values = {name: number(found.get(field)) for name, field in CLOCKS.items()}
    return {name: value for name, value in values.items() if value is not None}


def machine(emulated):
    """Card, driver and compute capability; the card is empty where none is found."""
    if emulated:
        return {"card": "emulated", "driver": "", "capability": ""}
    found = query("name", "driver_version", "compute_cap")
    return {"card": found.get("name", ""), "driver": found.get("driver_version", ""), "capability": found.get("compute_cap", "")}
