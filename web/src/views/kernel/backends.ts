import type { Health } from "../../api/types";

export interface Backend {
  readonly key: string;
  readonly name: string;
}

const NAMES: Readonly<Record<string, string>> = {
  cuda: "this machine's GPU",
  cpu: "this machine's processor",
  null: "nobody: exact fake times",
};

/** Who can run kernels, the fastest first; nobody where measuring is off. */
export function backendsOf(health: Health | null): readonly Backend[] {
  if (!health?.allow_measure) return [];
  return ["cuda", "cpu", "null"].filter((key) => health.backends.includes(key)).map((key) => ({ key, name: NAMES[key] ?? key }));
}

/** The backend of the address, or the first there is; none means predicting only. */
export function chosen(wanted: string, backends: readonly Backend[]): string {
  if (wanted === "none") return "none";
  return backends.find(({ key }) => key === wanted)?.key ?? backends[0]?.key ?? "none";
}

/** Real kernels run on the server's own machine, whatever device is looked at. */
export function isReal(backend: string): boolean {
  return backend === "cuda" || backend === "cpu";
}
