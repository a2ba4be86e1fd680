/** What the server's answers look like; only the fields that the page reads. */

export type Bound = "memory" | "compute" | "launch" | "network";
export type OpClass = "gemm" | "attention" | "elementwise";
export type Tier = "ideal" | "expected";

export interface Health {
  readonly status: string;
  readonly version: string;
  readonly allow_measure: boolean;
  readonly cuda: boolean;
  readonly nvml: boolean;
  readonly gpu?: string | null;
  readonly backends: readonly string[];
}

export interface Device {
  readonly key: string;
  readonly name: string;
  readonly vendor: string;
  readonly architecture: string;
  readonly kind: string;
  readonly year: number | null;
  readonly tdp: number | null;
  readonly confidence: string;
  readonly source: string;
  readonly notes: string | null;
  readonly memory: { readonly bandwidth: number; readonly capacity: number | null; readonly type: string | null };
  readonly peaks: Readonly<Record<string, number>>;
  readonly origin: string;
}

export interface Model {
  readonly key: string;
  readonly name: string;
  readonly family: string;
  readonly parameters: number;
  readonly active_parameters: number;
  readonly max_context: number | null;
}

export interface Precision {
  readonly name: string;
  readonly summary: string;
  readonly weights: string;
  readonly activations: string;
  readonly kv: string;
  readonly stored_bits_per_weight: number;
  readonly math: string | null;
  readonly peak_tflops: number | null;
  readonly unavailable: string | null;
}

export interface Formats {
  readonly weights: string;
  readonly activations: string;
  readonly kv: string;
  readonly math: string;
  readonly attention_math: string;
}

export interface Operator {
  readonly site: string;
  readonly class: OpClass;
  readonly count: number;
  readonly predicted_time_us: number;
  readonly ideal_time_us: number;
  readonly lo_us: number | null;
  readonly hi_us: number | null;
  readonly share: number;
  readonly bottleneck: Bound;
  readonly math: string;
  readonly flops: number;
  readonly bytes: number;
  readonly ai: number;
  readonly critical_ai: number;
  readonly predicted_tflops: number;
  readonly ideal_tflops: number;
}

export interface Advice {
  readonly what: string;
  readonly text: string;
  readonly gain: number | null;
}

export interface Estimate {
  readonly device: string;
  readonly device_name: string;
  readonly precision: string;
  /** Its text, which every verb takes. */
  readonly plan: string;
  /** Those of the layers. */
  readonly formats: Formats;
  readonly phase: string;
  readonly batch: number;
  readonly context: number;
  readonly tier: Tier;
  readonly stack: string;
  /** What the expected time stands on: `calibrated`, `transferred` or `prior`. */
  readonly basis: string;
  readonly predicted_time_us: number;
  readonly ideal_time_us: number;
  readonly expected_time_us: number;
  readonly lo_us: number;
  readonly hi_us: number;
  readonly predicted_tflops: number;
  readonly tokens_per_s: number;
  readonly weight_bytes: number;
  readonly kv_bytes: number;
  readonly memory_bytes: number;
  /** Who has which part of the device's memory, in bytes. */
  readonly room: { readonly capacity: number; readonly system: number; readonly reserve: number } | null;
  readonly fits: boolean | null;
  /** What is missing, and what would do: a narrower precision, or several devices. */
  readonly shortfall: { readonly missing_bytes: number; readonly precision: string | null; readonly tensor_parallel: number | null } | null;
  readonly longest_context: number | null;
  readonly largest_batch: number | null;
  readonly bottleneck: Bound;
  readonly flops: number;
  readonly bytes: number;
  readonly ai: number;
  readonly critical_ai: number;
  /** Stored bits of a weight and of an element of the cache, scales included. */
  readonly bits_per_weight: number;
  readonly bits_per_kv: number;
  readonly advice: readonly Advice[];
  readonly operators: readonly Operator[];
}

/** A device's roof and what stands under it, as the server sends it. */
export interface Chart<P> {
  readonly device: {
    readonly key: string;
    readonly name: string;
    readonly kind: string;
    readonly modified: boolean;
    readonly memory_bytes: number | null;
    readonly tdp_w: number | null;
    readonly source: string | null;
    readonly notes: string | null;
    readonly calibration: string | null;
  };
  readonly memories: readonly {
    readonly label: string;
    readonly source: string;
    readonly bytes_per_s: number;
    readonly lo_bytes_per_s: number | null;
    readonly hi_bytes_per_s: number | null;
  }[];
  readonly ceilings: readonly {
    readonly math: string;
    readonly label: string;
    readonly flop_per_s: number;
    readonly critical_ai: number;
    readonly lo_flop_per_s: number | null;
    readonly hi_flop_per_s: number | null;
  }[];
  readonly prediction: P;
}

export interface ModelPrediction {
  readonly model: string;
  readonly model_name: string;
  readonly parameters: number;
  readonly max_context: number | null;
  readonly estimates: readonly Estimate[];
  readonly unavailable: readonly unknown[];
}

export type Quality =
  | { readonly kind: "exact" }
  | { readonly kind: "released" }
  | { readonly kind: "unknown" }
  | { readonly kind: "estimated"; readonly low: number; readonly high: number }
  | { readonly kind: "published"; readonly change: number; readonly method: string; readonly source: string }
  | { readonly kind: "elsewhere"; readonly change: number; readonly source: string };

/** A plan with what it promises. */
export interface Outcome {
  /** Its text, which every verb takes. */
  readonly plan: string;
  /** What each runtime that loads it calls it. */
  readonly known_as: Readonly<Record<string, string>>;
  readonly batch: number;
  /** Devices that share each layer. */
  readonly tp: number;
  /** Seconds. */
  readonly time: number;
  readonly first_token: number | null;
  readonly tokens_per_s: number;
  /** Times the tokens per second of 16 bit, at the same batch on as many devices. */
  readonly gain: number | null;
  readonly bottleneck: Bound;
  readonly memory: {
    readonly weights: number;
    readonly cache: number;
    readonly in_flight: number;
    readonly system: number;
    readonly kept_free: number;
    readonly total: number;
    readonly capacity: number | null;
  };
  readonly quality: Quality;
  readonly cache_quality: Quality | null;
  /** The largest rise of the perplexity that has to be reckoned with. */
  readonly loss: number | null;
  readonly energy_per_token: { readonly kind: "fitted" | "at_limit"; readonly joules: number } | null;
  readonly dollars_per_million_tokens: number | null;
  readonly offload: { readonly layers: number; readonly of: number } | null;
  /** What it costs to take it though better plans do not fit. */
  readonly last_resort: string | null;
  /** Why it may not be chosen. */
  readonly refused: string | null;
  /** Why it was not chosen though it may be. */
  readonly lost: string | null;
  readonly pareto: boolean;
}

/** The choice under other circumstances. */
export interface Variation {
  readonly change: string;
  readonly choice: string | null;
  readonly gain: number | null;
  readonly same: boolean;
}

export interface ModelAnswer {
  readonly model: string;
  readonly device: string;
  readonly device_name: string;
  /** The chosen plan's text. */
  readonly plan: string | null;
  readonly batch: number;
  readonly goal: string;
  readonly tier: Tier;
  readonly outcomes: readonly Outcome[];
  readonly sensitivity: readonly Variation[];
  readonly reason: string;
  /** What the choice does to prompts. */
  readonly prefill: { readonly sentence: string } | null;
  readonly left_out: readonly { readonly plan: string; readonly reason: string }[];
  readonly warnings: readonly string[];
  readonly commands: readonly string[];
}

export interface GemmRank {
  readonly precision: string;
  readonly method: string;
  readonly time: number;
  readonly speedup: number | null;
  readonly bottleneck: Bound;
  readonly weights: number;
  readonly memory_savings_pct: number;
  readonly lost: string | null;
}

export interface GemmAnswer {
  readonly device: string;
  readonly device_name: string;
  readonly tier: Tier;
  readonly recommendation: {
    readonly precision: string;
    readonly method: string;
    readonly reason: string;
    readonly predicted_speedup: number;
    readonly memory_bound: boolean;
    readonly memory_savings_pct: number;
  };
  readonly ranked: readonly GemmRank[];
  readonly warnings: readonly string[];
  readonly commands: readonly string[];
}

export interface GemmEstimate {
  readonly device: string;
  readonly device_name: string;
  readonly precision: string;
  readonly formats: Formats;
  readonly tier: Tier;
  readonly predicted_time_us: number;
  readonly ideal_time_us: number;
  readonly lo_us: number | null;
  readonly hi_us: number | null;
  readonly bottleneck: Bound;
  readonly flops: number;
  readonly bytes: number;
  readonly ai: number;
  readonly critical_ai: number;
  readonly predicted_tflops: number;
  readonly predicted_gb_s: number;
  readonly speedup: number | null;
  readonly advice: { readonly text: string } | null;
}

export interface GemmEstimates {
  readonly subject: string;
  readonly estimates: readonly GemmEstimate[];
  readonly unavailable?: readonly { readonly precision: string; readonly reason?: string; readonly message?: string }[];
}

export interface Format {
  readonly name: string;
  readonly aliases: readonly string[];
  readonly summary: string;
  readonly element_bits: number;
  readonly exponent_bits: number | null;
  readonly mantissa_bits: number | null;
  readonly block: number | null;
  readonly scale: string;
  readonly stored_bits: number;
  readonly overhead_pct: number;
  readonly size_of_fp16: number;
  readonly element_max: number;
  readonly range_max: number | null;
  readonly positive_levels: number | null;
  readonly codebook: readonly number[] | null;
  readonly error_gaussian: number;
  readonly error_student_t5: number;
  readonly native_units: readonly string[];
  readonly native_devices: readonly string[];
  readonly runtimes: readonly string[];
  readonly source: string;
}

export interface FormatList {
  readonly rows: number;
  readonly columns: number;
  readonly formats: readonly Format[];
}

export interface SweepRow {
  readonly precision: string;
  readonly scale_bandwidth: number;
  readonly scale_compute: number;
  readonly batch: number;
  readonly context: number;
  readonly predicted_time_us: number;
  readonly tokens_per_s: number;
  readonly bottleneck: Bound;
  readonly fits: boolean | null;
}

/** What stands beside a measurement when it may not be what it seems. */
export interface Doubt {
  readonly kind: string;
  readonly text?: string;
}

export interface Measurement {
  readonly site: string;
  readonly shape: string;
  readonly precision: string;
  readonly kernel: string;
  readonly kernel_path: string;
  readonly residency: string;
  readonly measured_time_us: number;
  readonly p5_us: number;
  readonly p95_us: number;
  readonly samples: number;
  readonly discarded: number;
  readonly measured_tflops: number;
  readonly measured_bandwidth_gb_s: number;
  readonly ai: number;
  readonly roof_share: number | null;
  readonly warnings: readonly Doubt[];
}

/** How good a prediction was, by the program's one ladder. */
export type Grade = "good" | "fair" | "poor";

export interface Comparison {
  readonly site: string;
  readonly shape: string;
  readonly precision: string;
  readonly tier: Tier;
  readonly predicted_time_us: number;
  readonly ideal_time_us: number;
  readonly lo_us: number | null;
  readonly hi_us: number | null;
  readonly measured_time_us: number;
  readonly p5_us: number | null;
  readonly p95_us: number | null;
  readonly error_pct: number;
  readonly signed_pct: number;
  readonly ideal_error_pct: number;
  readonly efficiency: number;
  readonly status: string;
  readonly grade: Grade;
  readonly bottleneck: Bound;
  readonly ai: number;
  /** Intensity over the ridge's; below 1 on the side of memory. */
  readonly ridge_distance: number | null;
  readonly predicted_tflops: number;
  readonly measured_tflops: number;
  readonly measured_bandwidth_gb_s: number;
  readonly kernel_path: string | null;
  readonly warnings: readonly Doubt[];
  readonly diagnoses: readonly Doubt[];
}

/** Measurements held against a device. */
export interface Validation {
  /** The name of the device. */
  readonly hardware: string;
  readonly results: readonly Comparison[];
  readonly summary: {
    readonly mean_error_pct: number;
    readonly max_error_pct: number;
    readonly num_benchmarks: number;
    readonly verdict: string;
    readonly grade: Grade;
  };
  /** The verdict in a sentence with its reasons. */
  readonly verdict: string;
  readonly insight: string | null;
  readonly slow_kernels: readonly SlowKernel[];
}

/** A kernel that matters and is far below its roof. */
export interface SlowKernel {
  readonly shape: string;
  readonly phase: string | null;
  readonly precision: string;
  readonly of_roof_pct: number;
  readonly share_pct: number;
}
