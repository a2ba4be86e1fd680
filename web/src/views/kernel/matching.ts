import type { Compared, JobResult } from "../../api/jobs";
import type { Shape } from "../../state/view";

/** A result, where it is of this product on this device by this backend; results of another one say nothing here. */
export function resultOf(result: JobResult | null, shape: Shape, device: string | undefined, backend: string): Compared | null {
  const compared = comparedOf(result);
  if (!compared || compared.device !== device || compared.backend !== backend) return null;
  const comparisons = compared.comparisons.filter((found) => isShape(found.shape, shape));
  return comparisons.length > 0 ? { ...compared, comparisons } : null;
}

/** A result, where it is one of the verb `compare`. */
export function comparedOf(result: JobResult | null): Compared | null {
  return result && "comparisons" in result ? result : null;
}

/** Whether a kernel's name, such as `gemv 1 x 4096 x 4096`, tells of these sides. */
function isShape(name: string, { m, n, k }: Shape): boolean {
  const sides = /(\d+) ?x ?(\d+) ?x ?(\d+)/.exec(name)?.slice(1).map(Number);
  return sides !== undefined && sides[0] === m && sides[1] === n && sides[2] === k;
}
