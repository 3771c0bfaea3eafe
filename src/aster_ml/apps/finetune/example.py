"""Trains a small model to write orders in a format of its own, as an example.

Run by `make finetune`. Sentences such as "Anna would like two large pizzas at 7 pm" are to become
`ORDER 2 x pizza (large) | Anna | 19:00`. It writes the sentences, asks the model before, teaches
it, asks it again, and counts the right answers to sentences that it was not taught.

Exit codes: 0 all is well, 1 fewer than four fifths are right, or the model was refused.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from aster_ml.apps.finetune import __main__ as finetune
from aster_ml.apps.llm.loading import load_language
from aster_ml.apps.llm.sampling import Sampling
from aster_ml.apps.llm.terminal import Chat
from aster_ml.apps.reporting import reports_errors

COUNTS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}
ITEMS = ("pizza", "burger", "coffee", "salad", "sandwich", "soup", "taco", "pancake", "lemonade")
SIZES = ("small", "medium", "large")
NAMES = ("Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Hugo", "Iris", "Jack", "Kim",
         "Liam", "Maria", "Noah", "Olga", "Paul", "Rosa", "Sam", "Tina", "Victor")  # fmt: skip
FORMS = (
    "{name} would like {count} {size} {items} at {hour}.",
    "Please bring {count} {size} {items} to {name} at {hour}.",
    "At {hour} {name} comes for {count} {size} {items}.",
    "Can I have {count} {size} {items} for {name} at {hour}?",
)
HELD_OUT, SHOWN, WANTED = 20, 2, 0.8


class Order(NamedTuple):
    """A sentence and what is to be written of it."""

    sentence: str
    answer: str


def draw_order(rng: np.random.Generator) -> Order:
    """One of some tens of thousands of orders."""
    count, item, size, name, form = [
        str(rng.choice(choices)) for choices in (list(COUNTS), ITEMS, SIZES, NAMES, FORMS)
    ]
    hour = int(rng.integers(1, 12))
    evening = bool(rng.integers(2))
    plural = {"sandwich": "sandwiches"}.get(item, f"{item}s")
    sentence = form.format(
        name=name, count=count, size=size, hour=f"{hour} {'pm' if evening else 'am'}",
        items=item if COUNTS[count] == 1 else plural,
    )  # fmt: skip
    written = f"{hour + 12 * evening:02}:00"
    return Order(sentence, f"ORDER {COUNTS[count]} x {item} ({size}) | {name} | {written}")


def draw_orders(count: int, seed: int) -> list[Order]:
    """Orders with sentences that differ."""
    rng = np.random.default_rng(seed)
    found: dict[str, Order] = {}
    while len(found) < count:
        order = draw_order(rng)
        found[order.sentence] = order
    return list(found.values())


def write_lines(path: pathlib.Path, orders: Sequence[Order]) -> None:
    """Chats of one question and one answer, one a line."""
    lines = [
        json.dumps({
            "messages": [
                {"role": "user", "content": order.sentence},
                {"role": "assistant", "content": order.answer},
            ]
        })
        for order in orders
    ]  # fmt: skip
    path.write_text("\n".join(lines) + "\n")


def ask(
    model: pathlib.Path, orders: Sequence[Order], adapter: pathlib.Path | None = None
) -> list[str]:
    """Answers of the model to each sentence, in a chat of its own."""
    language = load_language(model, context=512, adapter=adapter)
    result = []
    for order in orders:
        chat = Chat(language, Sampling(temperature=0.0), max_tokens=48, write=lambda _: None)
        result.append(chat.say(order.sentence).strip())
    return result


def show(title: str, orders: Sequence[Order], answers: Sequence[str]) -> None:
    """Some questions and answers."""
    print(f"\n{title}")
    for order, answer in zip(orders, answers):
        print(f">>> {order.sentence}\n{answer}")


def run(options: argparse.Namespace) -> int:
    """Asks, teaches, asks again."""
    options.out.mkdir(parents=True, exist_ok=True)
    orders = draw_orders(options.examples + HELD_OUT, options.seed)
    taught, held_out = orders[HELD_OUT:], orders[:HELD_OUT]
    write_lines(options.out / "orders.jsonl", taught)
    show("before", held_out, ask(options.model, held_out[:SHOWN]))
    print(f"\n{len(taught)} examples: {options.out / 'orders.jsonl'}", flush=True)
    begin, used = time.perf_counter(), time.process_time()
    code = finetune.main([
        str(options.model), str(options.out / "orders.jsonl"), "--out", str(options.out),
        "--epochs", str(options.epochs), "--accumulate", "2", "--targets", "all",
        "--save-every", "0",
        "--rate", "2e-3", "--warmup", "5",
    ])  # fmt: skip
    if code:
        return code
    minutes = (time.perf_counter() - begin) / 60
    computed = (time.process_time() - used) / 60
    answers = ask(options.model, held_out, options.out)
    title = f"after {minutes:.1f} minutes, {computed:.1f} of CPU time"
    show(title, held_out, answers[:SHOWN])
    right = sum([answer == order.answer for answer, order in zip(answers, held_out)])
    print(f"\n{right} of {HELD_OUT} orders that it was not taught are written rightly")
    return 0 if right >= WANTED * HELD_OUT else 1


@reports_errors("finetune example")
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the example; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="finetune example", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("model", type=pathlib.Path, help="a GGUF file")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("orders"))
    parser.add_argument("--examples", type=int, default=300)
    # Forms and names are learned first, in some 30 steps; hours of the afternoon come last.
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    return run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
