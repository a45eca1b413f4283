"""A deferrable operator for Apache Airflow: a task that submits a job and waits without a worker.

Copy `TidegateTrigger` and the operator that its docstring shows into your DAGs. Airflow is not among
Tidegate's dependencies, so this file does not import it: what waits is `watch`, which is tested
against a gateway without Airflow; the classes around it are not.
"""

from collections.abc import AsyncIterator
from typing import Any

from tidegate_client import AsyncClient, Job, JobEnded, TimedOut


async def watch(client: AsyncClient, job: str, timeout_s: float) -> dict[str, Any]:
    """Wait for a job to end; give the event that resumes the task."""
    try:
        handle = await client.job(job)
        await handle.wait("completed", timeout=timeout_s)
    except (JobEnded, TimedOut) as error:
        return {"job": job, "good": False, "why": str(error)}
    return {"job": job, "good": True, "why": ""}


async def submit(client: AsyncClient, job: Job, run: str) -> str:
    """Submit once for a run of a task: Airflow's retries of it find the same job."""
    return (await client.jobs.submit(job, key=run)).id


class TidegateTrigger:
    """Runs in Airflow's triggerer.

    There it derives from `airflow.triggers.base.BaseTrigger`, and yields `TriggerEvent(event)`:

        class TidegateOperator(BaseOperator):
            def execute(self, context):
                run = f"{self.dag_id}-{self.task_id}-{context['ts_nodash']}"
                with Client.from_context(self.tidegate) as client:
                    job = client.jobs.submit(self.job, key=run).wait("running").id
                self.defer(trigger=TidegateTrigger(self.tidegate, job), method_name="ended")

            def ended(self, context, event):
                if not event["good"]:
                    raise AirflowException(event["why"])
    """

    def __init__(self, context: str | None, job: str, timeout_s: float = 86_400.0) -> None:
        self.context, self.job, self.timeout_s = context, job, timeout_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Say how it is made again in another process; the token is in none of it."""
        fields = {"context": self.context, "job": self.job, "timeout_s": self.timeout_s}
        return "airflow_operator.TidegateTrigger", fields

    async def run(self) -> AsyncIterator[dict[str, Any]]:
        async with AsyncClient.from_context(self.context) as client:
            yield await watch(client, self.job, self.timeout_s)
