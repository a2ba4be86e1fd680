import type { JobResult } from "../../api/jobs";
import type { Shape } from "../../state/view";

/** A result, where it is of this product on this device by this backend; results of another one say nothing here. */
export function resultOf(result: JobResult | null, shape: Shape, device: string | undefined, backend: string): JobResult | null {
  if (!result || result.device !== device || (result.backend ?? null) !== backend) return null;
  const comparisons = (result.comparisons ?? []).filter((found) => isShape(found.shape, shape));
  return comparisons.length > 0 ? { ...result, comparisons } : null;
}

/** Whether a kernel's name, such as `gemv 1 x 4096 x 4096`, tells of these sides. */
function isShape(name: string, { m, n, k }: Shape): boolean {
  const sides = /(\d+) ?x ?(\d+) ?x ?(\d+)/.exec(name)?.slice(1).map(Number);
  return sides !== undefined && sides[0] === m && sides[1] === n && sides[2] === k;
}
