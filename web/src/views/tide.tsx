import { useData } from "../data.ts";
import { Card, Loaded } from "../parts.tsx";

export function Tide() {
  const found = useData("/api/v1/overview");
  return (
    <Card title="Tide">
      <Loaded of={found}>{(data) => <p>{data.policy}</p>}</Loaded>
    </Card>
  );
}
