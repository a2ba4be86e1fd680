import type { Health } from "../../api/types";

type Key = Health["backends"][number];

export interface Backend {
  readonly key: Key;
  readonly name: string;
}

/** The fastest first. */
const NAMES: Readonly<Record<Key, string>> = {
  cuda: "this machine's GPU",
  cpu: "this machine's processor",
  null: "nobody: exact fake times",
};

/** Who can run kernels, the fastest first; nobody where measuring is off. */
export function backendsOf(health: Health | null): readonly Backend[] {
  if (!health?.allow_measure) return [];
  return (Object.keys(NAMES) as Key[]).filter((key) => health.backends.includes(key)).map((key) => ({ key, name: NAMES[key] }));
}

/** The backend of the address, or the first there is; none means predicting only. */
export function chosen(wanted: string, backends: readonly Backend[]): Key | "none" {
  if (wanted === "none") return "none";
  return backends.find(({ key }) => key === wanted)?.key ?? backends[0]?.key ?? "none";
}

/** Real kernels run on the server's own machine, whatever device is looked at. */
export function isReal(backend: Key | "none"): boolean {
  return backend === "cuda" || backend === "cpu";
}
