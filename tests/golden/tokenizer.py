# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/tokenizer: a small byte-level BPE of Qwen3.5's kind, and what the tokenizers package makes of texts.

    python tests/golden/tokenizer.py    (needs tokenizers)

tokenizer.json   NFC, Qwen3.5's pattern, a few hundred merges learnt from the sentences below, added tokens
cases.json       a list of {text, ids, as_text, decoded}: ids with special tokens recognised; where they differ, ids with
                 them as text, and the text that the latter decode to
"""

import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

FOLDER = pathlib.Path(__file__).resolve().parent / "tokenizer"
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PLAIN = ["<tool_call>", "</tool_call>", "<tool>"]

SENTENCES = """
The river turned slowly through the valley, and the people who lived along it turned with it.
They said that the water wasn't theirs; it's only lent. We'll see, I've heard, they're sure, he'd go, I'm here.
def forward(self, x):\n    if x is None:\n        return [0, 1, 2]\n    return self.layer(x) + x  # residual
for (int i = 0; i < 128; ++i) { sum += a[i] * b[i]; }\r\n\r\n// end of the loop\r\n
Der Fluss bog langsam durch das Tal, und die Menschen, die an ihm wohnten, wussten es längst. Größe, Übung, Maße.
La rivière tournait lentement dans la vallée; les gens qui habitaient là l'avaient toujours su. Où êtes-vous, Noël?
El río giraba despacio por el valle. ¿Quién lo sabía? ¡Nadie! Mañana, señor, será otro día.
Река медленно поворачивала через долину, и люди, жившие у реки, поворачивали вместе с ней.
Ο ποταμός έστριβε αργά μέσα από την κοιλάδα και οι άνθρωποι το ήξεραν.
النهر يدور ببطء عبر الوادي، والناس الذين يعيشون على ضفافه يعرفون ذلك.
הנהר התפתל לאט דרך העמק, והאנשים שחיו לאורכו ידעו זאת.
नदी घाटी से होकर धीरे धीरे मुड़ती थी, और लोग उसके साथ मुड़ते थे।
แม่น้ำไหลช้าๆ ผ่านหุบเขา และผู้คนที่อาศัยอยู่ริมน้ำก็รู้ดี
河流缓缓地穿过山谷，住在河边的人们也随之转弯。今天是二〇二六年十一月三十日。
川はゆっくりと谷を曲がり、そのほとりに住む人々もそれを知っていた。カタカナとひらがな。
강은 천천히 골짜기를 돌아 흘렀고, 강가에 사는 사람들은 그것을 알고 있었다.
Sông chảy chậm qua thung lũng, và những người sống bên bờ đều biết điều đó.
1234567890 3.14159 2,718 0x1F 10^-5 50% $20 €30 #1 @home a_b c-d e/f g\\h ~/path?q=1&r=2
😀 😃 👍🏽 👩‍👩‍👧‍👦 🇩🇪 ❤️ ☕ → ← ≤ ≥ ∑ √ α β γ
"""

FIXED = [
    "", " ", "  ", "\n", "\r\n", "\r\n\r\n", "\n\n\n", "\t", " \n ", "a", "A b", "a  b", "a   b", "   a", "a   ", "a \n b", "a\n\n  b",
    "\u00a0a\u00a0", "a\u2003b", "\u3000漢字\u3000", "a\u0085b", "\u180ea \u180e", "\u2028x\u2029y", "\x0b\x0c\x1c\x1f", "a\u200bb\ufeffc",
    "It's IT'S it'S we'Ll they'RE I'D don't 'tis ſ's 'ſ x'\u017f y'\u212a", "123456 ١٢٣ ²³ Ⅷ ½ 1,234.5e-6", "e\u0301 é e\u0301\u0327 \u1e9b\u0323",
    "\u0041\u030a \u212b \u00c5", "\u1100\u1161\u11a8 각 \u1100\u1161 가", "क़ \u0958 \u0915\u093c", "नि की क्ष", "שָׁלוֹם", "اَلْعَرَبِيَّة", "ภาษาไทย น้ำ",
    "👩‍👩‍👧‍👦👍🏽🇩🇪❤️", "😀a😀 b", "<|endoftext|>", "a<|im_start|>user\nhi<|im_end|>\n", "<|im_start|", "<|im_start|><|im_end|>x<|endoftext|> y",
    "<tool_call>{\"a\": 1}</tool_call>", "<tool_call <tool> <tool_call></tool_call", "<<|im_end|>>", "x <|endoftext|>y", "<|end\u0301oftext|>",
    "def f(x):\n\treturn x\n\n\n    # end\n", "line\r\n  next\r\r\n\n", "a\r\n \r\nb", "...!!!???\n\n...", "()[]{}<>;:,./\\|`~!@#$%^&*-_=+", "=" * 200,
    "a" * 300, " " * 130, "\n" * 70, "ab" * 200, "the the the river" * 30, "漢" * 90, "\u0301", "\u0301\u0301a", "a\u0301" * 40, "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𠜎",
    "\x00\x01\x7f", "\ufffd \ufffe \uffff", "Ǆ ǅ ǆ ﬁ ﬀ ①", "mixed русский中文عربي한국어 text", "snake_case camelCase kebab-case", "\u00ad\u2011\u2060",
]


def small_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=700, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([SENTENCES] * 3, trainer)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in PLAIN])
    return tokenizer


def random_texts(count):
    source = random.Random(5)
    letters = list("aeinrst THE'sdlm") + list("éßñаяλש漢字かナ한글ก็ाि") + [" ", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u2003"]
    letters += list("0123.,;!?-_(){}<>|\"") + ["\u0301", "\u0327", "\u093c", "\u200d", "\ufe0f", "😀", "👍🏽", "\u180e", "\u0085", "\u1161", "\u11a8"]
    letters += SPECIAL[:2] + PLAIN[:2] + ["<|", "|>", "'re", "'LL", "ing", "the ", "river"]
    return ["".join(source.choice(letters) for _ in range(source.randint(1, 24))) for _ in range(count)]


def main():
    FOLDER.mkdir(exist_ok=True)
    tokenizer = small_tokenizer()
    tokenizer.save(str(FOLDER / "tokenizer.json"), pretty=False)
    cases = []
    for text in FIXED + SENTENCES.splitlines(keepends=True) + random_texts(300):
        tokenizer.encode_special_tokens = False
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = True
        as_text = tokenizer.encode(text, add_special_tokens=False).ids
        decoded = tokenizer.decode(as_text, skip_special_tokens=False)
        case = {"text": text, "ids": ids}
        if as_text != ids:
            case["as_text"] = as_text
        if decoded != text:
            case["decoded"] = decoded
        cases.append(case)
    lines = ",\n".join(json.dumps(case, separators=(",", ":"), ensure_ascii=False) for case in cases)
    (FOLDER / "cases.json").write_text("[\n" + lines + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
