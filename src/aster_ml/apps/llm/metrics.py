"""Writes the counts of an engine for Prometheus.

Receives an `Engine`; returns text in the format that Prometheus reads.
"""

from __future__ import annotations

from aster_ml.apps.llm.engine import Engine

COUNTERS = {
    "answers": "answers begun",
    "prompt_tokens": "tokens of prompts that were computed",
    "reused_tokens": "tokens of prompts that were there already",
    "tokens": "tokens written after the first of each answer",
    "cancelled": "answers that nobody wanted any more",
    "failed": "answers that an error ended",
    "prompt_seconds": "seconds spent on prompts",
    "token_seconds": "seconds spent on tokens",
}


def metrics_text(engine: Engine) -> str:
    """Counters and gauges, each with a line of help."""
    lines = []
    for name, said in COUNTERS.items():
        full = f"aster_llm_{name}_total"
        lines += [f"# HELP {full} {said}", f"# TYPE {full} counter"]
        lines.append(f"{full} {getattr(engine.counts, name)}")
    gauges = {
        "slots": ("slots of the memory", len(engine.slots)),
        "busy_slots": ("slots with an answer", len(engine.busy)),
        "waiting": ("answers that wait for a slot", len(engine.queue)),
    }
    for name, (said, value) in gauges.items():
        full = f"aster_llm_{name}"
        lines += [f"# HELP {full} {said}", f"# TYPE {full} gauge", f"{full} {value}"]
    return "\n".join(lines) + "\n"
