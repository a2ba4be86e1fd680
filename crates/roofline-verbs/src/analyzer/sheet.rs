//! The data sheet of a device, and the dimensions of a model.

use roofline_core::{
    Device, Dim, Format, Math, Model,
    format::Sizes,
    model::{AttentionLayer, FeedForward},
    units::Watts,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    place::{Place, ridge},
    roof::tera,
};
use crate::{Context, Note, Result};

/// The model and the device that are meant.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
pub struct Sheet {
    #[serde(flatten)]
    pub place: Place,
}

/// What is known of both.
#[derive(Serialize, JsonSchema)]
pub struct SheetAnswer {
    pub device: DeviceSheet,
    pub model: ModelSheet,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// A device in the numbers of a roofline: dense peaks, and where the ridge of 16 bit is.
#[derive(Serialize, JsonSchema)]
pub struct DeviceSheet {
    pub key: String,
    pub name: String,
    pub architecture: String,
    pub peak_fp32_tflops: Option<f64>,
    pub peak_fp16_tflops: Option<f64>,
    pub peak_bf16_tflops: Option<f64>,
    pub peak_fp8_tflops: Option<f64>,
    pub peak_int8_tops: Option<f64>,
    pub memory_bandwidth_gb_s: f64,
    pub memory_gb: Option<f64>,
    pub tdp_w: Option<f64>,
    pub ridge_point: f64,
}

/// A model's dimensions; of layers that differ, those of the first.
#[derive(Serialize, JsonSchema)]
pub struct ModelSheet {
    pub key: String,
    pub name: String,
    pub hidden_size: u64,
    pub num_layers: u64,
    pub num_heads: u64,
    pub num_kv_heads: u64,
    pub head_dim: u64,
    pub intermediate_size: u64,
    pub vocab_size: u64,
    pub max_context: Option<u64>,
    pub params_billions: f64,
    pub weights_gb_fp16: f64,
    pub kv_bytes_per_token_fp16: f64,
}

impl DeviceSheet {
    fn new(device: Device, math: Math) -> Result<Self> {
        let peak = |math: Math| device.peaks.of(math).map(tera);
        Ok(Self {
            peak_fp32_tflops: peak(Math::Fp32),
            peak_fp16_tflops: peak(Math::Fp16),
            peak_bf16_tflops: peak(Math::Bf16),
            peak_fp8_tflops: peak(Math::Fp8),
            peak_int8_tops: peak(Math::Int8),
            memory_bandwidth_gb_s: device.memory.bandwidth.value() / 1e9,
            memory_gb: device.memory.capacity.map(|capacity| capacity.value() / 1e9),
            tdp_w: device.tdp.map(Watts::value),
            ridge_point: ridge(&device, math)?.value(),
            key: device.label(),
            name: device.name,
            architecture: device.architecture,
        })
    }
}

impl ModelSheet {
    fn new(model: Model) -> Self {
        let first = model.layers.first();
        let (heads, kv_heads, head_dim) = match first.map(|layer| layer.attention) {
            Some(AttentionLayer::Grouped { heads, kv_heads, head_dim, .. }) => (heads, kv_heads, head_dim),
            Some(AttentionLayer::Latent { heads, value_dim, .. }) => (heads, Dim::ONE, value_dim),
            None => (Dim::ONE, Dim::ONE, Dim::ONE),
        };
        let inner = match first.map(|layer| layer.feed_forward) {
            Some(FeedForward::Dense { inner, .. } | FeedForward::Experts { inner, .. }) => inner.get(),
            None => 0,
        };
        let parameters = model.parameters() as f64;
        let one = Dim::ONE;
        Self {
            hidden_size: model.hidden.get(),
            num_layers: model.layers.iter().map(|layer| layer.count).sum(),
            num_heads: heads.get(),
            num_kv_heads: kv_heads.get(),
            head_dim: head_dim.get(),
            intermediate_size: inner,
            vocab_size: model.vocabulary.get(),
            max_context: model.max_context.map(Dim::get),
            params_billions: parameters / 1e9,
            weights_gb_fp16: 2.0 * parameters / 1e9,
            kv_bytes_per_token_fp16: model.kv_bytes(one, one, one, Format::FP16, Sizes::Exact).value(),
            key: model.key,
            name: model.name,
        }
    }
}

impl Sheet {
    pub(super) fn answer(&self, context: &Context) -> Result<SheetAnswer> {
        let device = self.place.device(context)?;
        let math = self.place.unit(&device)?;
        Ok(SheetAnswer {
            device: DeviceSheet::new(device, math)?,
            model: ModelSheet::new(self.place.model(context)?),
            notes: context.notes(),
        })
    }
}
