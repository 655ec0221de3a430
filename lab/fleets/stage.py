"""The simulated providers of a fleet, a provider for each host, and a certificate for all."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from hivemind_addon.sim.call import Truth
from hivemind_addon.sim.certificate import write_certificates
from hivemind_addon.sim.provider import ProviderSettings
from hivemind_addon.sim.server import SimServer


@dataclass(frozen=True, slots=True)
class Stage:
    """Providers that listen."""

    servers: Mapping[str, SimServer]
    authority: Path
    """Who signs their certificate."""
    profiles: Path
    """The user's folder of profiles: here turns in WebSockets are scheduled, too."""

    @property
    def ports(self) -> Mapping[str, int]:
        """Of each host, on loopback."""
        return {host: server.port for host, server in self.servers.items()}

    @property
    def proxy_settings(self) -> tuple[str, ...]:
        """The settings that lead a proxy here, as `--set` takes them."""
        redirects = (f"hivemind_redirect={host}=127.0.0.1:{port}" for host, port in self.ports.items())
        return (*redirects, f"hivemind_profiles={self.profiles}", f"ssl_verify_upstream_trusted_ca={self.authority}")

    def truths(self) -> Mapping[str, Truth]:
        """What each provider saw."""
        return {host: server.truth() for host, server in self.servers.items()}


@asynccontextmanager
async def running_stage(folder: Path, settings: Mapping[str, ProviderSettings], seed: int) -> AsyncIterator[Stage]:
    """Providers of these hosts, until the block ends."""
    profiles = folder / "profiles"
    profiles.mkdir()
    (profiles / "openai.yaml").write_text("extends: openai\nwebsocket: turns\n", encoding="utf-8")
    first, *others = settings
    certificates = write_certificates(folder, first, *others)
    tls = (str(certificates.certificate), str(certificates.key))
    async with AsyncExitStack() as stack:
        servers = {}
        for host, one in settings.items():
            server = SimServer(one, seed=seed, tls=tls, http2=True)
            await server.start()
            stack.push_async_callback(server.stop)
            servers[host] = server
        yield Stage(servers, certificates.authority, profiles)
