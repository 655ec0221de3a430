from hivemind_addon.proxy.profile.paths import normal_path, path_matches
from tests.cpu_time import least_cpu_s

SPELLINGS = [
    "/v1/chat/completions",
    "/v1/chat/completions?a=/b",
    "/v1/%63hat/completions",
    "/v1/%63%48at%2fcompletions",
    "//v1/chat/completions",
    "/v1//chat///completions",
    "/v1/./chat/completions",
    "/v1/x/../chat/completions",
    "/v1/x/%2e%2e/chat/completions",
    "/v1/x/..;/chat/completions",
    "/v1/chat;x=1/completions;y",
    "/v1/chat/completions/",
    "/V1/Chat/COMPLETIONS",
    "/v1\\chat\\completions",
    "/v1/chat/completions%20",
    "/../v1/chat/completions",
]


def test_all_spellings_of_a_path_are_one(subtests):
    for path in SPELLINGS:
        with subtests.test(path=path):
            assert normal_path(path) == "/v1/chat/completions"
            assert path_matches("*/chat/completions", path)


def test_other_paths_stay_others(subtests):
    for path in [
        "/v1/chat/completions2",
        "/v1/%2563hat/completions",
        "/v1/chat",
        "/",
        "",
        "*",
        "/v1/chat/completions/x",
    ]:
        with subtests.test(path=path):
            assert not path_matches("*/v1/chat/completions", path)


def test_a_glob_in_upper_case_means_the_same():
    assert path_matches("/Team/*", "/team/x")


def test_a_long_path_is_no_work():
    assert least_cpu_s(lambda: path_matches("*/chat/completions", "/%2e%2e/a" * 7000)) < 0.05
