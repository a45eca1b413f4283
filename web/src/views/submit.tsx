/** A job is submitted: a form, for who may and where somebody takes it. */
import { me, may, useClosed } from "../me.ts";
import { Card, Empty, Waiting } from "../parts.tsx";
import { href, isPast } from "../route.ts";
import { SubmitForm } from "../submit/form.tsx";
import "../submit/submit.css";

export function Submit() {
  const closed = useClosed();
  const who = me.value;
  if (who === null) return <Waiting />;
  if (isPast.value) {
    return (
      <Card title="Submit a job">
        <Empty title="What is past cannot be changed.">
          <a href={href({ entry: null })}>Go to now</a>
        </Empty>
      </Card>
    );
  }
  if (!may("job.submit")) {
    return (
      <Card title="Submit a job">
        <Empty title="You may look, and submit nothing.">
          Tenants and operators submit jobs; whoever runs the gateway says who is one.
        </Empty>
      </Card>
    );
  }
  return <SubmitForm who={who} closed={closed} />;
}
