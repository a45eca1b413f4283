"""Long-running roles: configuration, life cycle, health, metrics and logs around the shells."""

import contextlib
import sys
from typing import Any

# Wherever rich is installed structlog loads it to paint tracebacks, and with it attrs and pygments,
# for logs that programs read. So it finds none while it is loaded.
_modules: dict[str, Any] = sys.modules
if not {"rich", "structlog"} & _modules.keys():
    _modules["rich"] = None  # `import rich` fails
    with contextlib.suppress(ImportError):  # a plain install has no services
        import structlog as structlog
    del _modules["rich"]
