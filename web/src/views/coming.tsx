import { Empty } from "../parts.tsx";

export function Coming() {
  return <Empty title="This view is not built yet." />;
}
