import { useData } from "../data.ts";
import { Card, Loaded, Name } from "../parts.tsx";

export function Job({ id }: { id: string }) {
  const found = useData("/api/v1/jobs/{job}", { job: id });
  return (
    <Card title={<Name of={id} />}>
      <Loaded of={found}>{(data) => <p>{data.job.state}</p>}</Loaded>
    </Card>
  );
}
