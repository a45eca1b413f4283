import { useData } from "../data.ts";
import { Card, Loaded } from "../parts.tsx";

export function Jobs() {
  const found = useData("/api/v1/overview");
  return (
    <Card title="Jobs">
      <Loaded of={found}>{(data) => <p>{data.policy}</p>}</Loaded>
    </Card>
  );
}
