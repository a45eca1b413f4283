"""Lists of rows, read page by page as they are needed; all pages are of one state of the cell."""

import importlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from tidegate_client.flow import Flow, Moment
from tidegate_client.operations import ListQuery

Row = TypeVar("Row", bound=BaseModel)
Found = TypeVar("Found")


class Rows(Generic[Row]):
    """Rows that are read while one goes through them."""

    def __init__(
        self, run: Callable[[Flow[Any]], Any], question: ListQuery[Row], moment: Moment
    ) -> None:
        self._run, self._question, self._moment = run, question, moment

    def __iter__(self) -> Iterator[Row]:
        cursor = None
        while True:
            rows, cursor = self._run(self._question.page(self._moment, cursor))
            yield from rows
            if cursor is None:
                return

    def to_pandas(self) -> Any:
        """Give all rows as a DataFrame; pandas must be installed."""
        return _frame(self)


class AsyncRows(Generic[Row]):
    """The same, for `async for`."""

    def __init__(
        self,
        run: Callable[[Flow[Any]], Coroutine[Any, Any, Any]],
        question: ListQuery[Row],
        moment: Moment,
    ) -> None:
        self._run, self._question, self._moment = run, question, moment

    async def __aiter__(self) -> AsyncIterator[Row]:
        cursor = None
        while True:
            rows, cursor = await self._run(self._question.page(self._moment, cursor))
            for row in rows:
                yield row
            if cursor is None:
                return

    async def to_pandas(self) -> Any:
        """Give all rows as a DataFrame; pandas must be installed."""
        return _frame([row async for row in self])


def _frame(rows: Iterable[Any]) -> Any:
    try:
        pandas = importlib.import_module("pandas")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("to_pandas needs pandas: pip install pandas") from error
    return pandas.DataFrame([row.model_dump() for row in rows])
