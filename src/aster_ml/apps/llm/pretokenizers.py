r"""Cuts text for byte-level vocabularies before bytes are merged, by the file's own patterns.

Receives the value of `tokenizer.ggml.pre`; returns regular expressions, applied one after the
other. The patterns are those that the published tokenizers of the models state: data of these.
"""

from __future__ import annotations

from aster_ml.errors import FormatError
from aster_ml.formats.fileio import show_value

ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORDS = rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|"
MARKS = rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
)
CJK = r"[一-龥ࠀ-一가-퟿]+"
DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}"
)
# The first names are those of the issue of each pattern, the others use the same.
PATTERNS: dict[str, list[str]] = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [rf"{WORDS}\p{{N}}{{1,3}}{MARKS}"],
    "qwen2": [rf"{WORDS}\p{{N}}{MARKS}"],
    "tekken": [TEKKEN],
    "deepseek-llm": [
        r"[\r\n]", r"\s?[\p{Lu}\p{Ll}\p{Lt}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", CJK,
        r"\p{N}+",
    ],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3],
}  # fmt: skip
SAME = {
    "default": "gpt-2", "mpt": "gpt-2", "olmo": "gpt-2", "phi-2": "gpt-2", "jina-en": "gpt-2",
    "refact": "smollm", "starcoder": "smollm", "codeshell": "smollm", "command-r": "smollm",
    "llama3": "llama-bpe", "llama-v3": "llama-bpe", "dbrx": "llama-bpe", "smaug-bpe": "llama-bpe",
    "stablelm2": "qwen2", "deepseek-r1-qwen": "qwen2", "megrez": "qwen2", "hunyuan": "qwen2",
}  # fmt: skip
# Tokens of these are looked up whole before merges are tried.
WHOLE_FIRST = frozenset({"llama-bpe", "tekken"})


def patterns_of(name: object) -> tuple[str, list[str]]:
    """The name that a name stands for, and its patterns.

    Raises: FormatError for a name that is not known here.
    """
    plain = SAME.get(name, name) if isinstance(name, str) else None
    if plain not in PATTERNS:
        raise FormatError(
            f"tokenizer.ggml.pre is {show_value(name)}, which is not known here; known are "
            f"{', '.join(sorted([*PATTERNS, *SAME]))}",
            "gguf",
        )
    return plain, PATTERNS[plain]
