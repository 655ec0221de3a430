"""Where a text holds something that looks like a credential or an e-mail address. Pure, and linear in the text.

    by itself      sk-ant-…, ghp_…, a JWT, a private key, the address of a webhook        a prefix, and what follows
    by its name    password: …, "apiKey": "…", --token …, <secret>…, aws_session_token=…  a name, and a value

Shapes are looked for by a literal that each of them has: a search for it passes a megabyte in a fraction of a
millisecond, a regular expression alone would take fifty. After a match the search goes on behind it.

A value is judged by its name: a password may be any word that is no type and no code, a token has letters and digits.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

_EMAIL_CHARS = 64
_ESCAPE = rb"(?<=\\[nrtbf])|(?<=\\u[0-9A-Fa-f]{4})"
"""In JSON the letter before a word may be part of a line's end."""
_BEFORE = rb"(?:" + _ESCAPE + rb"|(?<![A-Za-z0-9]))"
_WORD = rb"[A-Za-z0-9_\-]"
_GAP = rb"(?:[ \t\r\n]|\\[nrt]){1,8}"


@dataclass(frozen=True, slots=True)
class _Shape:
    """How one kind of secret looks."""

    literals: tuple[bytes, ...]
    """In lower case where case does not matter."""
    pattern: re.Pattern[bytes]
    """Begins at a literal. Its last group, where it has one, is the secret."""
    any_case: bool = False


def _shape(*literals: str, then: bytes) -> _Shape:
    either = b"|".join(re.escape(literal.encode()) for literal in literals)
    return _Shape(tuple(literal.encode() for literal in literals), re.compile(_BEFORE + b"(?:" + either + b")" + then))


def _line(*literals: str, then: bytes) -> _Shape:
    """Words of a line in any case, and the secret in it."""
    either = b"|".join(re.escape(literal.encode()) for literal in literals)
    pattern = re.compile(b"(?:" + either + b")" + then, re.IGNORECASE)
    return _Shape(tuple(literal.encode() for literal in literals), pattern, any_case=True)


_QUOTES = rb"(?:\\{0,8}[\"'`\]]){0,2}"
_OPEN = rb"[ \t]{0,8}" + _QUOTES + rb"[ \t]{0,8}(?:=>|:=|[:=])[ \t]{0,8}(?:\\{0,8}[\"'`])?"
_TO_LINE_END = rb"(?:[^\"'`\\\r\n]|\\/){4,4096}"

_BY_ITSELF = (
    # OpenAI, Anthropic, OpenRouter; Stripe; GitHub; GitLab.
    _shape("sk-", then=_WORD + rb"{12,512}"),
    _shape("sk_live_", "rk_live_", "sk_test_", "rk_test_", "whsec_", then=rb"[A-Za-z0-9]{10,512}"),
    _shape("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", then=rb"\w{16,512}"),
    _shape(
        *(f"gl{kind}-" for kind in ("pat", "dt", "rt", "ptt", "cbt", "imt", "agent", "oas", "soat", "ffct", "ft")),
        then=_WORD + rb"{10,512}",
    ),
    _shape(
        "xoxb-",
        "xoxp-",
        "xoxa-",
        "xoxr-",
        "xoxs-",
        "xoxe-",
        "xoxe.",
        "xoxc-",
        "xoxd-",
        "xapp-",
        then=rb"[A-Za-z0-9_\-.%]{10,512}",
    ),
    _shape(
        "xai-",
        "pypi-",
        "GOCSPX-",
        "pplx-",
        "nvapi-",
        "tvly-",
        "csk-",
        "PMAK-",
        "NRAK-",
        "AKCp",
        "ATATT3",
        "ATCTT3",
        "sq0atp-",
        "sq0csp-",
        "pul-",
        "AIza",
        "ya29.",
        "dp.pt.",
        "ops_eyJ",
        "hvs.",
        "hvb.",
        "hvr.",
        "1//0",
        "figd_",
        "glsa_",
        "glc_",
        "sntrys_",
        "sntryu_",
        "dckr_pat_",
        "dckr_oat_",
        then=rb"[A-Za-z0-9_\-.+=]{16,512}",
    ),
    _shape(
        "hf_",
        "api_org_",
        "gsk_",
        "npm_",
        "dop_v1_",
        "doo_v1_",
        "dor_v1_",
        "ntn_",
        "sbp_",
        "lin_api_",
        "shpat_",
        "shpss_",
        "shpca_",
        "shppa_",
        "rubygems_",
        "tfp_",
        "r8_",
        "fw_",
        "sgp_",
        "jina_",
        "LTAI",
        then=rb"[A-Za-z0-9]{16,512}",
    ),
    _shape("SG.", then=rb"[\w\-]{16,64}\.[\w\-]{16,128}"),
    _shape("SK", "AC", "key-", "dapi", then=rb"[0-9a-f]{32}(?:-\d)?(?![0-9A-Za-z])"),
    _shape("AGE-SECRET-KEY-", then=rb"[0-9A-Z]{20,100}"),
    _shape("AKIA", "ASIA", "ABIA", "ACCA", then=rb"[A-Z0-9]{16}"),
    # A JWT: its first two parts are JSON in base64.
    _shape("eyJ", then=rb"[\w\-]{6,800}+\.[\w\-]{6,8000}+(?:\.[\w\-]{0,8000})?"),
    # To its end; to the end of the text, where that is missing. The same in base64, as Kubernetes writes it.
    _shape(
        "-----BEGIN ",
        then=rb"[A-Z ]{0,40}(?:PRIVATE KEY|CERTIFICATE)(?:[\s\S]{0,20000}?-----END [A-Z ]{0,60}-----|[\s\S]{0,20000})",
    ),
    _shape("LS0tLS1CRUdJTi", then=rb"[A-Za-z0-9+/=]{20,20000}"),
    _Shape((b"://",), re.compile(rb"://(?!\[)([^\s/:@\"'\\<>]*:[^\s/@\"'\\<>]+)(?=@)")),
    # Webhooks: whoever has the address may write.
    _line("hooks.slack.com/", then=rb"((?:services|workflows|triggers)/[\w/+\-]{8,200})"),
    _line("discord.com/api/", "discordapp.com/api/", then=rb"(?:v\d{1,2}/)?(webhooks/\d{5,25}/[\w\-]{16,200})"),
    _line("webhook.office.com/", "logic.azure.com", then=rb"([\w/@:?&=%.\-]{20,500})"),
    _line("bot", then=rb"(\d{6,12}:[\w\-]{30,50})"),
    _Shape((b":AA",), re.compile(rb"(?<=\d{8}):(AA[\w\-]{30,50})")),
    # Hashes of passwords.
    _Shape(
        (b"$1$", b"$2a$", b"$2b$", b"$2y$", b"$5$", b"$6$", b"$y$", b"$apr1$", b"$argon2"),
        re.compile(rb"\$(?:[12569y][aby]?|apr1|argon2\w{1,2})\$[./A-Za-z0-9$=,+]{20,300}"),
    ),
    # Heads and lines.
    _line("bearer ", then=rb"\s{0,8}((?=[\w.~+/=\-]{0,100}[0-9])[\w.~+/=\-]{8,4096}|[\w.~+/=\-]{24,4096})"),
    _line(
        "authorization",
        then=_OPEN
        + rb"((?:(?:bearer|basic|digest|token|api-?key|negotiate|ntlm|aws4-hmac-sha256|hawk|dpop|sso-key|splunk)[ \t]"
        + _TO_LINE_END
        + rb")|[^\s\"'`\\,;]{0,200}[0-9][^\s\"'`\\,;]{5,4096})",
    ),
    _line("cookie", "cookie2", then=_OPEN + rb"([\w.\-]{1,100}=" + _TO_LINE_END + rb")"),
    _line(
        "login",
        "machine",
        "account",
        then=_GAP + rb"[^\s\\]{1,200}" + _GAP + rb"password" + _GAP + rb"([^\s\"\\]{3,400})",
    ),
    _line("-u ", "--user ", then=rb"\s{0,4}\\?[\"']?([^\s:\"'\\]{1,100}:(?!\d+(?:[\s\"'\\]|$))[^\s\"'\\]{4,200})"),
    _Shape((b":5432:", b":*:"), re.compile(rb":(?:5432|\*):[^:\s\\]{1,63}:[^:\s\\]{1,63}:([^\s\"\\]{3,200})")),
    _line("sig=", "signature=", then=rb"((?=[^&\s]{0,40}[0-9%])[A-Za-z0-9%+/=\-_]{24,600})"),
    # Whose Claude Code it is: body#metadata.user_id, in its two forms (2026).
    _shape("user_", then=rb"([0-9a-f]{64})"),
    _Shape((b"account_",), re.compile(rb"account_([0-9a-f]{8}-[0-9a-f-]{27})")),
    _Shape(
        (b"account_uuid", b"device_id", b"organization_uuid"),
        re.compile(rb"(?:account_uuid|device_id|organization_uuid)\\*\"\s*:\s*\\*\"([\w\-]{8,})"),
    ),
)


class _Kind(Enum):
    """What a name tells of its value."""

    PASSWORD = auto()
    """Any word."""
    TOKEN = auto()
    """Letters and digits, or long."""
    BASIC = auto()
    """User and password in base64."""


_NAMES = {
    **dict.fromkeys(
        (
            *("password", "passwd", "passphrase", "passcode", "pwd", "secret", "pass"),
            *("secret_key", "secretkey", "secret-key", "secret_access_key", "secretaccesskey", "secret_key_base"),
        ),
        _Kind.PASSWORD,
    ),
    **dict.fromkeys(
        (
            *("token", "api_key", "apikey", "api-key", "api key", "access_key", "accesskey", "access-key"),
            *("private_key", "privatekey", "private-key", "private_key_id", "auth_key", "authkey", "account_key"),
            *("accountkey", "encryption_key", "encryptionkey", "signing_key", "signingkey", "master_key", "masterkey"),
            *("license_key", "licensekey", "client-key-data", "client_key_data", "credential", "credentials"),
            *("shared_key", "sharedkey", "subscription-key", "subscription_key", "session_id", "sessionid", "sessid"),
            *("webhook_url", "jwt", "bearer", "auth_code", "storage_key", "deploy_key", "service_key", "app_key"),
        ),
        _Kind.TOKEN,
    ),
    "auth": _Kind.BASIC,
}
_WHOLE = frozenset((b"pass", b"pwd", b"auth", b"jwt", b"bearer"))
"""Names that are words' ends, too."""
_VALUE = re.compile(
    rb"(?:[_\-]?(?:value|hash|b64|base64|string|\d{1,3}))?(?![\w\-])"
    + _QUOTES
    + rb"(?P<sep>[ \t]{0,8}(?::[ \t]{0,4}[\w.]{1,24}[ \t]{1,4}=(?![=~>])|=>|:=|[:=](?![:=])|>|\\u003[dD])[ \t]{0,8}"
    rb"|[ \t]{1,4}(?:is|was)[ \t]{1,4}|[ \t]{1,8})"
    rb"(?:[bfru]{1,2}(?=\\{0,8}[\"'`]))?(?:"
    rb"(?P<quote>\\{0,8})(?:\"(?P<double>(?:[^\"\\\r\n]|\\/){3,4096})|'(?P<single>(?:[^'\"\\\r\n]|\\/){3,4096})"
    rb"|`(?P<tick>[^`\"\\\r\n]{3,4096}))"
    rb"|(?P<bare>(?:[^\s\"'`\\,;&<>]|\\/|[,;&](?![\w.\-%]{0,40}[=:])(?=[^\s\"'`\\,;&<>])){4,4096}))",
    re.IGNORECASE,
)
_PLAIN = frozenset(
    b"string|str|text|bytes|byte|number|integer|int|float|boolean|bool|true|false|null|none|nil|undefined|void|any|object"
    b"|array|list|dict|unknown|required|optional|hidden|readonly|varchar|char|password|passwd|secret|token|field|prompt"
    b"|value|input|key|apikey|example|changeme|placeholder|redacted|removed|missing|invalid|expired|valid|empty|enabled"
    b"|disabled|default|auto|self|type|from|file|with|that|this|header|cookie|basic|bearer|oauth|oauth2|reset|change".split(
        b"|"
    )
)
"""Values that are types, words about a secret, or examples."""
_CODE = re.compile(
    rb"[$%<{(*\[/]|\.\.|(?:[A-Za-z_]{1,60}\d?(?:\.|::|->)){1,6}[A-Za-z_]{1,60}\d?(?:[(\[.]|$)|\w{1,60}[(\[]"
    rb"|(?:https?|file|env|vault|op|ref|arn):|redacted-|your[-_ ]|xxx"
)
_FLAG = re.compile(
    rb"(?:(?:"
    + _ESCAPE
    + rb"|(?<![\w\-]))--?[\w\-]{0,64}|\b(?:setx?|ENV|export|config set)[ \t](?:-\w{1,3}[ \t]){0,2}[\w\-]{0,64})\Z"
)
_DIGIT, _LETTER = re.compile(rb"\d"), re.compile(rb"[A-Za-z]")
_NAME_LIKE = re.compile(rb"[A-Za-z]+(?:[_.\-:/][A-Za-z]+)*[.!?:]?")
_NAME_OF_SECRET = re.compile(rb"pass|secret|token|key|credential|auth")
_PROSE = frozenset(
    b"a an and are as at be by for from has have in is it must no not of on or should that the this to with you".split()
)
"""Words of sentences, and of no passphrase."""
_LONG_VALUE_BYTES = 200
"""In a shorter one that is no secret another name is looked for."""
_LOCAL = re.compile(rb"(?:" + _ESCAPE + rb"|(?<![A-Za-z0-9._%+\-\\]))[A-Za-z0-9._%+\-]{0,63}[A-Za-z0-9_]@")
_DOMAIN = re.compile(rb"(?:[A-Za-z0-9\-]{1,63}\.){1,8}[A-Za-z]{2,24}")


def found(text: bytes, breathe: Callable[[], None]) -> Iterator[tuple[int, int]]:
    """Where secrets stand, in no order; they may overlap. `breathe` is called now and then."""
    lowered = text.lower()
    for shape in _BY_ITSELF:
        for literal in shape.literals:
            breathe()
            within, place = lowered if shape.any_case else text, 0
            while (place := within.find(literal, place)) >= 0:
                if match := shape.pattern.match(text, place):
                    yield match.span(match.lastindex or 0)
                place = max(place + 1, match.end() if match else 0)
    for name, kind in _NAMES.items():
        breathe()
        literal, place = name.encode(), 0
        while (place := lowered.find(literal, place)) >= 0:
            start, place = place, place + len(literal)
            if value := _value(text, start, place, kind):
                begin, end, is_secret = value
                if is_secret:
                    yield begin, end
                if is_secret or end - begin > _LONG_VALUE_BYTES:
                    place = end
    place = 0
    while (place := text.find(b"@", place)) >= 0:
        if span := _email_around(text, place):
            yield span
        place += 1


def _email_around(text: bytes, place: int) -> tuple[int, int] | None:
    """Of an address whose `@` is at a place."""
    domain = _DOMAIN.match(text, place + 1)
    local = _LOCAL.search(text, max(0, place - _EMAIL_CHARS), place + 1) if domain else None
    return (local.start(), domain.end()) if domain and local else None


def _value(text: bytes, start: int, end: int, kind: _Kind) -> tuple[int, int, bool] | None:
    """Begin and end of the value behind a name, and whether that is a secret; None: there is no value."""
    if end < len(text) and text[end : end + 1].isalnum() and text[end : end + 1] not in b"vVhHbBsS0123456789":
        return None
    match = _VALUE.match(text, end)
    if match is None:
        return None
    name, before = text[start:end], text[max(0, start - 66) : start]
    if name.lower() in _WHOLE and before[-1:].isalpha() and not (before[-1:].islower() and name[:1].isupper()):
        return None
    group = next(one for one in ("double", "single", "tick", "bare") if match[one] is not None)
    value = match[group]
    if group == "bare":
        value = value.rstrip(b")]}.!?:|")
    separator = match["sep"].strip().lower()
    is_told = bool(separator) and separator not in (b"is", b"was")
    if not is_told and not (_FLAG.search(before) and value[:1] != b"-"):
        is_secret = _is_random(value, 12 if not separator and group == "bare" else 6)
    else:
        is_secret = _is_secret(value, kind, name, match, is_quoted=group != "bare")
    return match.start(group), match.start(group) + len(value), is_secret


def _is_random(value: bytes, least: int) -> bool:
    """Whether a value without blanks has letters and digits."""
    return (
        len(value) >= least
        and b" " not in value
        and bool(_DIGIT.search(value) and _LETTER.search(value))
        and not _CODE.match(value)
    )


def _is_secret(value: bytes, kind: _Kind, name: bytes, match: re.Match[bytes], *, is_quoted: bool) -> bool:
    lowered = value.lower()
    if lowered in _PLAIN or _CODE.match(lowered) or len(set(value)) < 3:
        return False
    if kind is _Kind.BASIC:
        return _is_basic(value)
    if name == b"pass" or name.lower() == b"pass":
        return _is_random(value, 6) or (is_quoted and b" " not in value and len(value) >= 8)
    if b" " in value:
        words = lowered.split()
        return kind is _Kind.PASSWORD and value[:1].islower() and 2 < len(words) < 9 and not _PROSE & set(words)
    if kind is _Kind.TOKEN and name.isupper() and len(value) >= 8 and not _NAME_OF_SECRET.search(lowered):
        return True
    if kind is _Kind.TOKEN:
        return _is_random(value, 8) or (len(value) >= 20 and not _NAME_LIKE.fullmatch(value))
    if _NAME_LIKE.fullmatch(value):
        # A word: in code without quotes a name.
        if not is_quoted and not name.isupper() and _NAME_OF_SECRET.search(lowered):
            return False
        tight = not match["sep"].strip(b":=>").strip() and b" " not in match["sep"]
        return (
            is_quoted or name.isupper() or (tight and len(value) >= 6) or (b"=" not in match["sep"] and value.islower())
        )
    return len(value) >= 4 and (bool(_LETTER.search(value)) or len(value) >= 6 or is_quoted)


def _is_basic(value: bytes) -> bool:
    try:
        plain = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return _is_random(value, 20)
    return b":" in plain and plain.isascii()
