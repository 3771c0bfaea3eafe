"""A model's tokenizer, from the vocabulary in its GGUF file.

Receives the metadata of a file; returns a `Tokenizer`: text to token numbers and back. Merging is
done by the package `tokenizers`; what is read from the file, and which bytes a token stands for, is
settled here. Chat templates are in `template`.

Source: Sennrich et al., BPE (2016); Radford et al., GPT-2 (2019) for byte-level vocabularies; Kudo
and Richardson, SentencePiece (2018).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, overload

from aster_ml.apps.llm.extras import needed
from aster_ml.apps.llm.merges import merges_of
from aster_ml.apps.llm.pretokenizers import WHOLE_FIRST, patterns_of
from aster_ml.errors import FormatError
from aster_ml.nn.fileio import show_value

# Kinds of tokens in a file.
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPACE = "\u2581"
# Tokens that end an answer, in vocabularies that name none or one of several.
ENDS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
    "<|end_of_text|>", "<｜end▁of▁sentence｜>", "<EOT>", "</s>",
)  # fmt: skip


def byte_letters() -> dict[str, int]:
    """The letter by which byte-level vocabularies show each byte -> the byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return {chr(b): b for b in shown} | {chr(256 + i): b for i, b in enumerate(hidden)}


LETTERS = byte_letters()


class Tokenizer:
    """Text to token numbers and back.

    Raises: FormatError where the vocabulary is damaged or of a kind that is not known here, and
    where the package `tokenizers` is absent.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.metadata = metadata
        self.tokens = self.texts("tokens")
        if not self.tokens:
            raise FormatError("the file has no vocabulary (tokenizer.ggml.tokens)", "gguf")
        self.kinds = self.numbers("token_type", len(self.tokens), NORMAL)
        self.model = metadata.get("tokenizer.ggml.model")
        self.number = {token: i for i, token in reversed(list(enumerate(self.tokens)))}
        # Tokens that are found whole: those of control only where the text may have them.
        self.all_names = self.pattern_of(CONTROL, USER)
        self.user_names = self.pattern_of(USER)
        self.space_prefix = self.flag("add_space_prefix", self.model == "llama")
        self.bos, self.eos = self.special_number("bos"), self.special_number("eos")
        self.adds_bos = self.flag("add_bos_token", self.model == "llama") and self.bos is not None
        self.adds_eos = self.flag("add_eos_token", False) and self.eos is not None
        named = [self.eos, self.special_number("eot"), self.special_number("eom")]
        known = [self.number.get(text) for text in ENDS]
        self.ends = frozenset([i for i in [*named, *known] if i is not None])
        self.is_byte_level = self.model == "gpt2"
        if self.is_byte_level:
            self.engine = self.byte_level()
        elif self.model == "llama":
            self.engine = self.sentencepiece()
        else:
            raise FormatError(
                f"the tokenizer is of the kind {show_value(self.model)}, which is not known here; "
                "known are gpt2 (byte-level BPE) and llama (SentencePiece)",
                "gguf",
            )
        self.bytes_of = TokenBytes(self.token_bytes, len(self.tokens))
        for i, kind in enumerate(self.kinds):
            if kind == BYTE:
                self.token_bytes(i)
        # Lists of texts that nobody asks for again.
        del self.metadata

    # what the file says

    def get(self, key: str, default: Any = None) -> Any:
        """What the file says of the tokenizer."""
        return self.metadata.get(f"tokenizer.ggml.{key}", default)

    def flag(self, key: str, default: bool) -> bool:
        """A truth value."""
        return bool(self.get(key, default))

    def texts(self, key: str) -> list[str]:
        """A list of texts. Raises: FormatError where it is none."""
        found = self.get(key, [])
        if not isinstance(found, list) or not all([isinstance(x, str) for x in found]):
            raise FormatError(f"tokenizer.ggml.{key} is no list of texts", "gguf")
        return found

    def numbers(self, key: str, count: int, default: float) -> list[Any]:
        """A list of as many numbers. Raises: FormatError where it is none, or of another length."""
        found = self.get(key)
        if found is None:
            return [default] * count
        if not isinstance(found, list) or any([x.__class__ not in (int, float) for x in found]):
            raise FormatError(f"tokenizer.ggml.{key} is no list of numbers", "gguf")
        if len(found) != count:
            raise FormatError(
                f"tokenizer.ggml.{key} has {len(found)} entries, the vocabulary {count}", "gguf"
            )
        return found

    def special_number(self, name: str) -> int | None:
        """The number of a token that has a part to play."""
        found = self.get(f"{name}_token_id")
        if found is None:
            return None
        if found.__class__ is not int or not 0 <= found < len(self.tokens):
            raise FormatError(
                f"tokenizer.ggml.{name}_token_id is {show_value(found)}, the vocabulary has "
                f"{len(self.tokens)} tokens",
                "gguf",
            )
        return int(found)

    def pattern_of(self, *kinds: int) -> re.Pattern[str]:
        """Finds tokens of these kinds; the longer one where one begins with another."""
        names = [text for text, i in self.number.items() if self.kinds[i] in kinds and text]
        names.sort(key=len, reverse=True)
        return re.compile("|".join([re.escape(name) for name in names]) or "(?!)")

    # engines

    def byte_level(self) -> Any:
        """Bytes as letters, cut by the file's patterns, merged by the file's list."""
        library = needed("tokenizers", "llm")
        name, patterns = patterns_of(self.get("pre", "default"))
        cuts = [
            library.pre_tokenizers.Split(library.Regex(pattern), "isolated") for pattern in patterns
        ]
        whole = name in WHOLE_FIRST or self.flag("ignore_merges", False)
        engine = self.make_engine(library, self.merges(), ignore_merges=whole)
        engine.pre_tokenizer = library.pre_tokenizers.Sequence(
            [*cuts, library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        return engine

    def merges(self) -> list[tuple[str, str]]:
        """The merges of the file. Raises: FormatError for one of tokens that are not there."""
        number = self.number
        result = []
        for text in self.texts("merges"):
            left, _, right = text.partition(" ")
            # Two that are none make none, and what has no space has nothing right of it.
            if left not in number or right not in number or left + right not in number:
                raise FormatError(
                    f"the merge {show_value(text)} is not of two tokens that make a third", "gguf"
                )
            result.append((left, right))
        return result

    def sentencepiece(self) -> Any:
        """Characters merged to the pieces of the best scores; what is unknown becomes bytes."""
        library = needed("tokenizers", "llm")
        scores = self.numbers("scores", len(self.tokens), 0.0)
        if any([score != score for score in scores]):
            raise FormatError("tokenizer.ggml.scores has what is no number", "gguf")
        pieces = [
            (-scores[i], i, text)
            for text, i in self.number.items()
            if self.kinds[i] in (NORMAL, USER) and len(text) > 1
        ]
        merges = merges_of([text for _, _, text in sorted(pieces)], self.number)
        unknown = next((t for t, i in self.number.items() if self.kinds[i] == UNKNOWN), None)
        engine = self.make_engine(library, merges, byte_fallback=True, unk_token=unknown)
        engine.normalizer = library.normalizers.Replace(" ", SPACE)
        return engine

    def make_engine(self, library: Any, merges: list[tuple[str, str]], **options: Any) -> Any:
        """A tokenizer of the package, of this vocabulary and these merges."""
        try:
            return library.Tokenizer(library.models.BPE(self.number, merges, **options))
        except Exception as error:
            raise FormatError(f"the vocabulary makes no tokenizer: {error}", "gguf") from error

    # text to tokens and back

    def encode(self, text: str, special: bool = False, bos: bool = True) -> list[int]:
        """The tokens of a text; with `special`, names of special tokens stand for them.

        `bos` puts the token of the beginning first, where the file wants that and it is not there.
        """
        plain = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        result: list[int] = []
        at = 0
        for match in (self.all_names if special else self.user_names).finditer(plain):
            result += self.merge(plain[at : match.start()])
            result.append(self.number[match[0]])
            at = match.end()
        result += self.merge(plain[at:])
        if bos and self.adds_bos and result[:1] != [self.bos]:
            result.insert(0, self.bos or 0)
        return result

    def merge(self, text: str) -> list[int]:
        """The tokens of a text without tokens of its own in it."""
        if not text:
            return []
        prefixed = " " + text if self.space_prefix else text
        found: list[int] = self.engine.encode(prefixed, add_special_tokens=False).ids
        return found

    def token_bytes(self, i: int) -> bytes:
        """The bytes that a token stands for; none for one of control."""
        text, kind = self.tokens[i], self.kinds[i]
        if kind in (CONTROL, UNUSED):
            return b""
        if self.is_byte_level and kind != USER:
            found = [LETTERS.get(letter) for letter in text]
            if None not in found:
                return bytes([b for b in found if b is not None])
            return text.encode("utf-8", "replace")
        if kind == BYTE and len(text) == 6 and text.startswith("<0x"):
            try:
                return bytes([int(text[3:5], 16)])
            except ValueError as error:
                raise FormatError(f"token {i}, {show_value(text)}, is no byte", "gguf") from error
        return text.replace(SPACE, " ").encode("utf-8", "replace")

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens, those of control left out; what is no UTF-8 shows as U+FFFD."""
        return b"".join([self.bytes_of[i] for i in tokens if i < len(self.bytes_of)]).decode(
            "utf-8", "replace"
        )

    def stream(self) -> Stream:
        """Decodes tokens as they come."""
        return Stream(self.bytes_of)


class TokenBytes(Sequence[bytes]):
    """The bytes of each token of a vocabulary, made when they are asked for."""

    def __init__(self, make: Callable[[int], bytes], count: int) -> None:
        self.make, self.known = make, list[bytes | None]([None]) * count

    def __len__(self) -> int:
        return len(self.known)

    @overload
    def __getitem__(self, i: int) -> bytes: ...

    @overload
    def __getitem__(self, i: slice) -> list[bytes]: ...

    def __getitem__(self, i: int | slice) -> bytes | list[bytes]:
        if isinstance(i, slice):
            return [self[n] for n in range(*i.indices(len(self)))]
        found = self.known[i]
        if found is None:
            found = self.known[i] = self.make(i)
        return found


class Stream:
    """Text of tokens as they come: a character is given when its last byte is there."""

    def __init__(self, bytes_of: Sequence[bytes]) -> None:
        self.bytes_of = bytes_of
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The characters that are whole with this token."""
        return self.decoder.decode(self.bytes_of[token] if token < len(self.bytes_of) else b"")

    def end(self) -> str:
        """What is left: U+FFFD for a character that is cut."""
        return self.decoder.decode(b"", final=True)
