from hivemind_addon.formats.profile.unclaimed_calls import is_model_host, is_shaped_like_a_call


def test_hosts_that_serve_models_are_known(subtests):
    cases = [
        ("generativelanguage.googleapis.com", True),
        ("us-east5-aiplatform.googleapis.com", True),
        ("bedrock-runtime.eu-west-1.amazonaws.com", True),
        ("my-resource.openai.azure.com", True),
        ("bedrock-mantle.us-east-1.api.aws", True),
        ("integrate.api.nvidia.com", True),
        ("storage.googleapis.com", False),
        ("s3.amazonaws.com", False),
        ("evil-openrouter.ai.test", False),
    ]
    for host, serves in cases:
        with subtests.test(host=host, serves=serves):
            assert is_model_host(host) is serves


def test_a_model_call_is_known_by_its_path(subtests):
    cases = [
        ("/v1beta/models/gemini-3-pro:streamGenerateContent", True),
        ("/model/anthropic.claude-opus-4/converse-stream", True),
        ("/openai/deployments/gpt-5-eu/chat/completions", True),
        ("//v1/%6dessages/?beta=true", True),
        ("/v1/messages/count_tokens", False),
        ("/v1/models", False),
        ("/upload", False),
    ]
    for path, is_call in cases:
        with subtests.test(path=path, is_call=is_call):
            assert is_shaped_like_a_call("POST", path) is is_call
            assert not is_shaped_like_a_call("GET", path)
