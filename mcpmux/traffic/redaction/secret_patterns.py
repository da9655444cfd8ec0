"""The forms of secrets in running text: header lines, `name=value`, elements, URLs, vendors' keys.

Every pattern takes time in proportion to the text: it either begins with fixed characters and fails within a
bounded distance, or consumes what it has matched. Redacting a text twice is like redacting it once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

SHORTEST = 10  # characters; no shorter text is a secret that is recognisable by its form alone

MARKER = re.compile(r"\[redacted: [^\[\]]{1,200}\]")


def marker(label: str) -> str:
    """Return the replacement for a secret."""
    return f"[redacted: {label.replace('[', '(').replace(']', ')')[:200]}]"


class Shape(NamedTuple):
    """One rule. A message in which a scan finds none of `hints` has no match of `expression`; see `scan_for`.

    The expression's group `kept`, when it has one, stays in front of the marker.
    """

    label: str
    hints: tuple[str, ...]
    expression: str

    def replace_in(self, text: str) -> tuple[str, int]:
        """Return the text without the matches of the rule, and their number."""
        kept = r"\g<kept>" if "(?P<kept>" in self.expression else ""
        replacement = kept + marker(self.label).replace("\\", r"\\")
        return _compiled(self.expression).subn(replacement, text)


_compiled = cache(re.compile)  # on first use: most processes never need most of them

_NOT_YET = r"(?!\[redacted: )"
_EQUALS = r"\\{0,3}+[\"']?+[ \t]{0,4}+(?:[:=]|=>)[ \t]{0,4}+"
_QUOTED = r"(?:(?!\\{0,3}(?P=q))[^\r\n]){2,}+"
_TYPES = (
    r"(?!(?:string|str|text|number|int|integer|float|boolean|bool|any|object|array|list|null|none|nil|true|"
    r"false|undefined|unknown|required|optional|bytes|secret|token|password)\b(?![^\s,;.)\]}?|&\"'\\]))"
)
_WORD = r"[^\s\"'`&;<>\[\](){}]{3,}+"
_LINE = r"[^\r\n\"']{2,}+"


def _assignment(words: str, value: str) -> str:
    """Match `word = value` or `"word": "value"`; `value`: an unquoted one. Names of types are not values."""
    kept = rf"(?P<kept>(?:{words}){_EQUALS}(?:\\{{0,3}}(?P<q>[\"']))?)"
    return rf"(?i:{kept}{_NOT_YET}{_TYPES}(?(q){_QUOTED}|{value}))"


def _option(words: str) -> str:
    """Match `--word value` of a command line."""
    kept = rf"(?P<kept>(?<![^\s\"'`=(])--?[a-z0-9-]{{0,40}}?(?:{words})[ \t]{{1,4}}[\"']?)"
    return rf"(?i:{kept}{_NOT_YET}{_TYPES}(?!-){_WORD})"


def _element(words: str) -> str:
    """Match `<word>value</word>`, of XML and the like. The end tag may be missing at the end of the text."""
    tag = rf"<[A-Za-z0-9_.:-]{{0,40}}?(?:{words})(?:[ \t][^<>]{{0,200}})?>"
    value = r"(?:[^<>]{2,}+(?=<\\{0,3}/)|[^<>\s]{3,}+(?=(?:<\W{0,3})?\Z))"
    return rf"(?i:(?P<kept>{tag}){_NOT_YET}{value})"


# The beginnings of vendors' keys, and the rest of each.
_VENDORS = (
    ("sk-", r"(?<![A-Za-z0-9]sk-)[A-Za-z0-9_-]{16,}+"),
    ("gho_ ghp_ ghr_ ghs_ ghu_ hf_ lin_api_ ntn_", "[A-Za-z0-9]{20,}+"),
    ("github_pat_", "[A-Za-z0-9_]{20,}+"),
    ("glpat- glrt- gldt- glptt- ya29.", "[A-Za-z0-9_-]{20,}+"),
    ("xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xapp-", "[A-Za-z0-9-]{11,}+"),
    ("AKIA ASIA", "[A-Z0-9]{16,}+"),
    ("AIza pypi-", "[A-Za-z0-9_-]{30,}+"),
    ("rk_live_ sk_live_ pk_live_ rk_test_ sk_test_ pk_test_", "[A-Za-z0-9]{10,}+"),
    ("npm_", "[A-Za-z0-9]{30,}+"),
    ("SG.", r"[A-Za-z0-9_-]{16,}+\.[A-Za-z0-9_-]{16,}+"),
    ("dop_v1_ doo_v1_", "[a-f0-9]{32,}+"),
    ("shpat_ shpca_ shppa_ shpss_", "[a-fA-F0-9]{20,}+"),
    ("whsec_", "[A-Za-z0-9+/=]{20,}+"),
    ("sq0", "[a-z]{3}-[A-Za-z0-9_-]{20,}+"),
)
_PREFIXES = [re.escape(prefixes).replace("\\ ", "|") for prefixes, _ in _VENDORS]
_VENDOR_KEYS = "|".join(f"(?:{prefix}){rest}" for prefix, (_, rest) in zip(_PREFIXES, _VENDORS, strict=True))
VENDOR_KEY, MASK = "VENDOR KEY", "MASK"  # no folded name can be one of these
_HINT_EXPRESSIONS = {
    # Each pattern wants at least ten more characters; JSON may have a backslash before a slash.
    VENDOR_KEY: rf"(?:{'|'.join(_PREFIXES)})[-A-Za-z0-9+/=_.\\]{{10}}",
    MASK: r"\\u|\x00",  # with one of these, other hints may be hidden
}
_QUERY_NAMES = (
    r"[A-Za-z0-9_.-]{0,40}?(?:token|secret|passw(?:or)?d|api[-_]?key|signature|credential)"
    r"|key|sig|code|auth|pass|pwd"
)

_BUILT_IN: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "private-key",
        ("key",),
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:[^-]|-(?!----))*+"
        r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?",
    ),
    ("authorization", ("auth",), _assignment(r"authorization", _LINE)),
    ("cookie", ("cookie",), _assignment(r"cookie", _LINE)),
    (
        "authorization",
        ("bearer", "basic"),
        r"(?P<kept>\b(?i:bearer|basic)[ \t]{1,4})"
        r"(?=[A-Za-z0-9._~+/-]{0,200}[0-9._~+/=-]|[A-Za-z]{0,200}[a-z][A-Z]|[A-Za-z]{24})"
        r"[A-Za-z0-9._~+/-]{8,}+=*+",
    ),
    ("url-userinfo", ("@",), r"(?P<kept>:(?:\\{0,2}/){2})(?!\[redacted: )[^\s/?#\"'<>\\]{1,1024}(?=@)"),
    # A password of a DSN may have any character. A port and a path are no password.
    (
        "url-userinfo",
        ("@",),
        r"(?P<kept>:(?:\\{0,2}/){2}[^\s/?#@:\"'<>\\]{1,256}:)(?!\[redacted: )(?![0-9]{1,5}[/?#])"
        r"[^\s@\"'<>]{1,256}(?=@[A-Za-z0-9\[])",
    ),
    (
        "url-token",
        ("hook",),
        r"(?P<kept>\b(?:hooks\.slack\.com(?:\\{0,2}/)[a-z]{1,20}"
        r"|discord(?:app)?\.com(?:\\{0,2}/)api(?:(?:\\{0,2}/)v[0-9]{1,3})?(?:\\{0,2}/)webhooks"
        r"|[A-Za-z0-9-]{1,60}\.webhook\.office\.com(?:\\{0,2}/)webhookb2)(?:\\{0,2}/))"
        r"(?!\[redacted: )[^\s?#\"'<>]{8,512}",
    ),
    (
        "url-token",
        ("token", "secret", "pass", "key", "sig", "credential", "auth", "code=", "pwd"),
        rf"(?i:(?P<kept>[?&#;](?:{_QUERY_NAMES})=)(?!\[redacted: )[^\s&#\"'<>\\]++)",
    ),
    ("password", ("pass",), _assignment(r"passw(?:or)?d|passphrase|passcode", _WORD)),
    # PWD is a program's working directory, so a path is no password.
    ("password", ("pwd",), rf"(?i:(?P<kept>(?<![A-Za-z])pwd=){_NOT_YET}(?![/~.$]|[A-Za-z]:){_WORD})"),
    ("password", ("pass",), _option("passw(?:or)?d|passphrase")),
    ("token", ("token",), _option("token")),
    ("secret", ("secret",), _option("secret")),
    ("api-key", ("key",), _option("api[-_]?key")),
    (
        "password",
        ("curl",),
        r"(?P<kept>\bcurl\b[^\r\n]{0,200}?[ \t](?:-u|--user)[ \t=]{0,4}[\"']?[^\s:\"']{1,128}:)"
        rf"{_NOT_YET}{_WORD}",
    ),
    ("password", ("pass",), _element(r"passw(?:or)?d|passphrase|passcode")),
    ("secret", ("secret", "credential"), _element(r"secret|credentials?")),
    ("api-key", ("key",), _element(r"(?:api|access|account|secret|subscription)[-_]?key")),
    ("token", ("token",), _element(r"(?<!progress)token")),
    ("secret", ("secret", "credential"), _assignment(r"secret|credentials?", _WORD)),
    ("api-key", ("key",), _assignment(r"(?:api|access|account|secret|subscription)[-_ ]?key", _WORD)),
    ("token", ("token",), _assignment(r"(?<!progress)token", _WORD)),
    (
        "jwt",
        ("eyj",),
        r"(?<![A-Za-z0-9_-])(?=[A-Za-z0-9_-]*?eyJ)[A-Za-z0-9_-]++"
        r"(?:(?:\.[A-Za-z0-9_-]++){2,}+|\.eyJ[A-Za-z0-9_-]*+)",
    ),
    ("vendor-key", (VENDOR_KEY,), _VENDOR_KEYS),
)


def shapes(labels: Iterable[str], own: Iterable[str]) -> tuple[Shape, ...]:
    """Return the rules of these labels, and assignments to the user's own names, with any joint of words."""
    rules = frozenset(labels)
    shapes = [Shape(rule, hints, f"(?a){pattern}") for rule, hints, pattern in _BUILT_IN if rule in rules]
    for name in own:
        letters = [re.escape(char) for char in name if char not in "-_. "]
        pattern = _assignment(r"[-_. ]{0,2}".join(letters), _WORD)
        shapes.append(Shape(name, (hint_of(name),), pattern))
    return tuple(shapes)


# Names of values that are secrets, by the built-in rules.
#
# Case, `-`, `_`, `.`, `\` and spaces do not matter: `X-Api-Key`, `x_api_key` and `xApiKey` are one name.

CACHE_SIZE = 4096  # names; a hostile peer may send new ones all day
CACHED_LENGTH = 128  # characters of a name that is remembered

_IGNORED = "-_. \\"
_FOLD_TEXT = str.maketrans("", "", _IGNORED)
_PROGRESS_TOKEN = "progresstoken"  # folded; a name of MCP that a scan ignores

# Folded names of secrets: the rule of each, and the hints that a scan finds in a message with one of them.
# The first that fits counts.
NAMES: tuple[tuple[str, str, str], ...] = (
    ("authorization", "auth", "auth"),
    ("password", "pass|pwd", "pass pwd"),
    ("token", "t?otp", 'otp"'),
    ("authorization", ".*authorization", "auth"),
    ("cookie", ".*cookies?", "cookie"),
    ("secret", ".*(?:secrets?|credentials?|(?:signing|encryption|master)key)", "secret credential key"),
    ("token", ".*(?:token|(?:access|refresh|api)tokens|sessionid)", "token session"),
    ("api-key", ".*(?:(?:subscription|auth|account|shared)key|accesskeyid)", "key"),
    ("private-key", ".*sshkey", "key"),
    ("password", ".*(?:passw(?:or)?d|passphrase|passcode).*", "pass"),
    ("secret", ".*(?:clientsecret|secretkey).*", "secret"),
    ("api-key", ".*(?:apikey|accesskey).*", "key"),
    ("private-key", ".*privatekey.*", "key"),
)
# Names of MCP and of paging that only look like secrets.
_HARMLESS = (_PROGRESS_TOKEN, "pagetoken", "nexttoken", "continuationtoken", "synctoken")

HEADER_NAMES = frozenset({"authorization", "proxyauthorization", "cookie", "setcookie", "xapikey"})
"""Folded names that stand before their value in lists of headers."""

Label = Callable[[str], str | None]


def fold(name: str) -> str:
    """Return the name in its canonical form, without case and separators."""
    return name.translate(_FOLD_TEXT).lower()


def hint_of(name: str) -> str:
    """Return a hint that a scan finds in every message with the name; "", which matches all, if unsure."""
    folded = fold(name)
    is_sure = name.isascii() and name.isprintable() and _PROGRESS_TOKEN not in folded
    return folded if is_sure else ""


def make_label(labels: Iterable[str], own: Iterable[str]) -> Label:
    """Return a function from a name to the rule, or the user's own name, that makes its value a secret."""
    rules = frozenset(labels)
    names = [(rule, f"(?s){names}") for rule, names, _ in NAMES if rule in rules]
    mine = {fold(name): name for name in own}

    def label(name: str) -> str | None:
        folded = fold(name)
        if folded in mine or folded.endswith(_HARMLESS):
            return mine.get(folded)
        return next((rule for rule, expression in names if _compiled(expression).fullmatch(folded)), None)

    cached = lru_cache(CACHE_SIZE)(label)
    return lambda name: cached(name) if len(name) <= CACHED_LENGTH else label(name)


# Search for many words in a message in one pass. The only module that knows RE2.

Scan = Callable[[bytes], Sequence[int]]
"""Returns the numbers of the hints that were found, in time proportional to the message."""


def scan_for(hints: Iterable[str]) -> Scan:
    """Return a scan for hints, in any case and with any separators in them.

    VENDOR_KEY and MASK stand for expressions. An empty hint is found in everything.
    """
    import re2  # not at the top: it is large, and most runs look at no message

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    expressions = re2.Set.SearchSet(options)
    between = f"[{re.escape(_IGNORED)}]*"
    for hint in hints:
        loose = between.join(rf"\x{ord(char):02x}" for char in hint)
        expressions.Add(_HINT_EXPRESSIONS.get(hint, f"(?i:{loose})"))
    expressions.Compile()
    match = expressions.Match

    def scan(data: bytes) -> Sequence[int]:
        numbers = match(data)
        # MCP's own progressToken contains the hint `token`, and is in most requests.
        if numbers and b"progressToken" in data:
            numbers = match(data.replace(b"progressToken", b"progressXxxxx"))  # as long, without a hint
        return numbers or ()

    return scan
