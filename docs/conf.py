"""How Sphinx makes the site of these pages: `make docs` builds it into build/docs.

The pages are plain Markdown, which reads the same on a forge; what belongs where is said here.
A link or an anchor that leads nowhere fails the build, and so does a page that is not listed.
No page asks another host for anything.
"""

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
from sphinx.highlighting import lexers

project = html_title = "Tidegate"
extensions = ["myst_parser"]
smartquotes = False  # `--json` has two hyphens
myst_heading_anchors = 4  # as a forge makes them
html_theme = "furo"
html_show_sphinx = html_show_copyright = html_copy_source = html_use_index = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#00695c", "color-brand-content": "#00695c"},
    "dark_css_variables": {"color-brand-primary": "#4db6ac", "color-brand-content": "#4db6ac"},
}
lexers["mermaid"] = TextLexer()  # a drawing on a forge, a table of arrows here

#: By page, what the navigation has below it: headings, and the pages of each.
BELOW = {
    "index": {
        "Tutorial": ["From the demo to a job of yours <tutorial>"],
        "How to, for tenants": ["Submit and follow a job <jobs>"],
        "How to, for platform engineers": [
            "Deploy <deploy>",
            "Run it for a team <team>",
            "Install an agent <install>",
            "Lend inference GPUs <lending>",
            "Meter GPUs and load <meters>",
            "Look at it in a browser <console>",
            "Ask a log over HTTP <gateway>",
            "Who may ask for what <gateway-rights>",
            "Use it from Python <client>",
            "Connect a device <mqtt-device>",
            "Live with bad links <offline>",
            "Upgrade and roll back <upgrade>",
            "Draw a stretch of a log <perfetto>",
        ],
        "How to, for researchers": [
            "Write a policy <writing-a-policy>",
            "Run jobs of your own <traces>",
            "Try another night <branch>",
            "A reclaim was late <late-reclaim>",
        ],
        "Reference": [
            "cli",
            "configuration",
            "events",
            "metrics",
            "policies",
            "state-diagrams/README",
            "glossary",
        ],
        "Explanation": ["architecture", "learning", "security", "results/README", "adr/README"],
    },
    "state-diagrams/README": {"": ["job", "node", "loan", "command"]},
    "results/README": {"": ["*"]},
    "adr/README": {"": ["*"]},
}


def _add_navigation(_: Sphinx, page: str, source: list[str]) -> None:
    for caption, pages in BELOW.get(page, {}).items():
        options = [":glob:", ":titlesonly:", *([f":caption: {caption}"] if caption else [])]
        options += [":hidden:"] if page != "adr/README" else []  # the others link to what is below
        source[0] += "\n".join(["\n", "```{toctree}", *options, "", *pages, "```", ""])


def setup(app: Sphinx) -> None:
    """Let Sphinx read each page with what is below it."""
    app.connect("source-read", _add_navigation)
