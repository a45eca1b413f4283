"""Installing where there was an agent, or half of one; and what may not go wrong on the way."""

import os

import pytest

from tests.console.conftest import Run
from tests.console.test_install import Site, mode, site

__all__ = ["site"]  # the fixture


def test_jobs_can_go_through_a_state_that_was_made_for_an_agent_of_another_user(
    tidegate: Run, site: Site
) -> None:
    """Uninstalled, and installed anew with a user for each tenant: the folder is still there."""
    if os.geteuid():
        pytest.skip("only root gives folders away")
    site.at("/etc").mkdir(parents=True)
    users = "root:x:0:0::/root:/bin/sh\ntidegate:x:990:990::/var/lib/tidegate:/bin/false\n"
    site.at("/etc/passwd").write_text(users)
    tidegate.does(*site.words())
    assert mode(site.at("/var/lib/tidegate")) == 0o750
    tidegate.does("edge-agent", "uninstall", "--root", site.tree)
    tidegate.does(*site.words(isolation="tenant"))
    assert mode(site.at("/var/lib/tidegate")) == 0o711
    site.at("/var/lib/tidegate").chmod(0o755)
    tidegate.does(*site.words(isolation="tenant"))
    assert mode(site.at("/var/lib/tidegate")) == 0o755, "as somebody wishes it"
