"""One page of text, such as a page of metrics."""

from runtime.http_client import HttpError, HttpRequest

#: OpenMetrics would add `_total` to counters that servers document without.
_ACCEPT = "text/plain;version=0.0.4,*/*;q=0.1"


def fetch(url: str, timeout_s: float) -> str:
    """Give the page's text; all of it must come within `timeout_s` seconds.

    Raises:
        HttpError: no answer, another status than 200, or not text; the message names the address.
    """
    ask = HttpRequest("GET", url, timeout_s=timeout_s, headers={"Accept": _ACCEPT})
    try:
        answer = ask()
        if answer.status != 200:
            raise HttpError(
                f"answers {answer.status} {answer.reason}; give the address of its metrics"
            )
        return answer.body.decode("utf-8")
    except HttpError as error:
        raise type(error)(f"{url}: {error}") from None
    except UnicodeDecodeError as error:
        raise HttpError(f"{url}: not a page in UTF-8: {error}") from None
