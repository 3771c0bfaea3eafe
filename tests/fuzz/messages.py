"""Messages of protobuf changed field by field, so that what comes of it is still a message."""

from __future__ import annotations

import random
from typing import Any

# Descriptors of protobuf: types of fields.
FLOATS, TEXT, MESSAGE, BYTES, ENUM = (1, 2), 9, 11, 12, 14
NUMBERS = [0, 1, 2, 3, 5, 7, 11, 16, -1, 1 << 40]
WORDS = ["", "x", "y", "a", "q"]


def messages_in(message: Any) -> list[Any]:
    """A message and all that are in it."""
    found = [message]
    for field, value in message.ListFields():
        if field.type == MESSAGE:
            for part in value if hasattr(value, "add") else [value]:
                found += messages_in(part)
    return found


def scalar(field: Any, draw: random.Random) -> Any:
    """A value for a field that is no message."""
    if field.type in FLOATS:
        return 2.5
    if field.type == TEXT:
        return draw.choice(WORDS)
    if field.type == BYTES:
        return draw.choice([b"", b"abc", bytes(8)])
    if field.type == ENUM:
        return draw.choice([value.number for value in field.enum_type.values])
    return draw.choice(NUMBERS)


def change(message: Any, draw: random.Random) -> None:
    """Clears, sets, repeats or removes one field, somewhere in a message."""
    owner = draw.choice(messages_in(message))
    there = [field for field, _ in owner.ListFields()]
    fields = there if there and draw.random() < 0.8 else list(owner.DESCRIPTOR.fields)
    field = draw.choice(fields)
    value = getattr(owner, field.name)
    way = draw.randrange(4)
    if way == 0:
        owner.ClearField(field.name)
    elif hasattr(value, "extend"):
        if len(value) and way == 1:
            del value[draw.randrange(len(value))]
        elif field.type == MESSAGE:
            made = value.add()
            if len(value) > 1:
                made.CopyFrom(value[draw.randrange(len(value) - 1)])
        else:
            put(value.append, field, draw)
    elif field.type == MESSAGE:
        value.SetInParent()
    else:
        put(lambda new: setattr(owner, field.name, new), field, draw)


def put(write: Any, field: Any, draw: random.Random) -> None:
    """Writes a value; one that the field cannot hold leaves it as it is."""
    new = scalar(field, draw)
    try:
        write(new)
    except ValueError:
        write(1)
