"""What the fork server of `tests.e2e.forked` has at hand for each mitmdump: the modules, the vocabulary, the profiles."""

import mitmproxy.tools.dump
import mitmproxy.tools.main  # noqa: F401

import hivemind_addon.proxy.gate.addon  # noqa: F401
from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.formats.wire.tokenizer import Tokenizer

load_profiles(None)
Tokenizer().load()
