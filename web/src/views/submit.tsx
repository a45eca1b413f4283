/** A job is submitted: a form, for who may and where somebody takes it. */
import { useData } from "../data.ts";
import { head } from "../live.ts";
import { me, may } from "../me.ts";
import { Card, Empty, Loaded, Waiting } from "../parts.tsx";
import { href, isPast, route } from "../route.ts";
import { SubmitForm } from "../submit/form.tsx";
import "../submit/submit.css";

export function Submit() {
  const closed = head.value?.closed ?? null;
  const who = me.value;
  const rules = useData("/api/v1/rules", { cell: route.value.cell }, { timeless: true }); // is there such a cell?
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
  return <Loaded of={rules}>{() => <SubmitForm who={who} closed={closed} />}</Loaded>;
}
