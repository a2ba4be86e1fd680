/** The server's answers by the names the page has for them. Their fields stand in the generated `schema.ts`, and nowhere else. */

import type { Schemas } from "./routes";

export type OpClass = Schemas["OperatorClass"];

export type Health = Schemas["Health"];
export type Device = Schemas["DeviceFacts"];
export type Model = Schemas["ModelFacts"];
export type Precision = Schemas["NamedPrecision"];
export type FormatList = Schemas["FormatsAnswer"];
export type Format = Schemas["FormatFacts"];

/** A device's roof and what stands under it. */
export type Chart<P extends Schemas["PredictAnswer"] = Schemas["PredictAnswer"]> = Schemas["RooflineAnswer"] & { readonly prediction: P };
export type ModelPrediction = Schemas["ModelPrediction"];
export type Estimate = Schemas["PassEstimate"];
export type Operator = Schemas["KernelFigures"];
export type GemmPrediction = Schemas["OperatorPrediction"];
export type GemmEstimate = Schemas["OperatorEstimate"];

export type ModelAnswer = Schemas["RecommendedModel"];
/** A plan with what it promises. */
export type Outcome = Schemas["PlanOutcome"];
export type Quality = Schemas["PlanQuality"];
/** The choice under other circumstances. */
export type Variation = Schemas["ChoiceVariation"];
export type GemmAnswer = Schemas["ProductAdvice"];

export type Sweep = Schemas["ModelSweep"];
export type SweepRow = Schemas["ModelPoint"];

export type Measurement = Schemas["MeasuredKernel"];
export type Comparison = Schemas["ComparedKernel"];
/** What stands beside a measurement when it may not be what it seems, and what explains its distance from theory. */
export type Doubt = Schemas["MeasurementWarning"] | Schemas["Explained"];
/** How good a prediction was, by the program's one ladder. */
export type Grade = Schemas["ComparisonGrade"];
/** Measurements held against a device. */
export type Validation = Schemas["Judged"];
/** A kernel that matters and is far below its roof. */
export type SlowKernel = Schemas["SlowKernel"];

/** What a profiler recorded, against the roof. */
export type Traced = Schemas["CompareAnswer"];
export type TracedOperator = Schemas["TracedOperator"];

/** What a GPU says of itself; what its driver does not tell is null. */
export type Telemetry = Schemas["NvmlStatus"];
