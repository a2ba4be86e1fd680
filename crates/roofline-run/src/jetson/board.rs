//! Which board it is, and which device of the registry that makes it.
//!
//! The part number among `/proc/device-tree/compatible` names the module; the `model` beside it is free text of whoever
//! made the image and may name another board, so it is asked second, together with the size of the memory. Whether the
//! board runs the faster Super modes is a matter of its image, not of its part: the table of power modes decides.

use roofline_core::units::Bytes;

use super::{nvpmodel::Table, root::Root};

/// A module by its part number.
struct Part {
    number: &'static str,
    /// The registry's key for it.
    key: &'static str,
}

/// Numbers from the device trees of Linux and of NVIDIA's image.
const PARTS: &[Part] = &[
    Part { number: "p3767-0000", key: "jetson_orin_nx_16gb" },
    Part { number: "p3767-0001", key: "jetson_orin_nx_8gb" },
    Part { number: "p3767-0003", key: "jetson_orin_nano_8gb" },
    Part { number: "p3767-0004", key: "jetson_orin_nano_4gb" },
    Part { number: "p3767-0005", key: "jetson_orin_nano_8gb" },
    // The developer kit: sold with 32 GB and with 64 GB, the GPU is the larger module's.
    Part { number: "p3701-0000", key: "jetson_agx_orin_64gb" },
    Part { number: "p3701-0004", key: "jetson_agx_orin_32gb" },
    Part { number: "p3701-0005", key: "jetson_agx_orin_64gb" },
    Part { number: "p3668-0000", key: "jetson_xavier_nx" },
    Part { number: "p3668-0001", key: "jetson_xavier_nx" },
    Part { number: "p3668-0003", key: "jetson_xavier_nx" },
    Part { number: "p3834-0008", key: "jetson_thor_t5000" },
];

/// A board by what its image calls it.
struct Model {
    /// Part of the model's name, in lower case.
    words: &'static str,
    /// The smallest memory that it may have.
    least_gib: f64,
    /// The registry's key for it.
    key: &'static str,
}

/// Of several with the same words, the first that the memory is enough for.
const MODELS: &[Model] = &[
    Model { words: "orin nano", least_gib: 5.5, key: "jetson_orin_nano_8gb" },
    Model { words: "orin nano", least_gib: 0.0, key: "jetson_orin_nano_4gb" },
    Model { words: "orin nx", least_gib: 10.0, key: "jetson_orin_nx_16gb" },
    Model { words: "orin nx", least_gib: 0.0, key: "jetson_orin_nx_8gb" },
    Model { words: "agx orin", least_gib: 40.0, key: "jetson_agx_orin_64gb" },
    Model { words: "agx orin", least_gib: 0.0, key: "jetson_agx_orin_32gb" },
    Model { words: "thor", least_gib: 90.0, key: "jetson_thor_t5000" },
    Model { words: "thor", least_gib: 0.0, key: "jetson_thor_t4000" },
    Model { words: "xavier nx", least_gib: 0.0, key: "jetson_xavier_nx" },
    // Not the Orin Nano, whose model says so; the board with 2 GB has no file.
    Model { words: "jetson nano", least_gib: 3.0, key: "jetson_nano" },
];

/// What a tree says of the board it is from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Board {
    /// The device tree's model.
    pub model: Option<String>,
    /// The module's part number, such as `p3767-0003`.
    pub part: Option<String>,
    /// Whether its device tree calls it Super.
    pub named_super: bool,
}

impl Board {
    /// What the device tree below `root` says, and what it does not.
    pub fn read(root: &Root) -> (Self, Vec<String>) {
        let first = |paths: [&str; 2]| root.text(paths[0]).or_else(|error| root.text(paths[1]).map_err(|_| error));
        let model = first(["/proc/device-tree/model", "/sys/firmware/devicetree/base/model"]);
        let compatible = first(["/proc/device-tree/compatible", "/sys/firmware/devicetree/base/compatible"]);
        let (part, tree_super) = compatible.as_deref().map_or((None, false), module);
        let plain = |text: &String| text.chars().take(100).filter(|letter| !letter.is_control()).collect::<String>();
        let name = model.as_ref().ok().map(plain);
        let named_super = tree_super || name.as_deref().is_some_and(|name| name.to_lowercase().ends_with("super"));
        // Without the part the model will do; without both there is something to say.
        let errors = model.err().filter(|_| part.is_none()).map(|error| format!("model: {error}"));
        (Self { model: name, part, named_super }, errors.into_iter().collect())
    }

    /// The registry's key for it, given its memory and its power modes.
    pub fn device(&self, memory: Option<Bytes>, table: Option<&Table>) -> Option<String> {
        let part = self
            .part
            .as_deref()
            .and_then(|part| PARTS.iter().find(|known| known.number == part))
            .map(|known| known.key);
        let key = part.or_else(|| {
            let (model, memory) = (self.model.as_deref()?.to_lowercase(), memory?.value() / 1024f64.powi(3));
            let known = MODELS.iter().find(|known| model.contains(known.words) && memory >= known.least_gib);
            known.map(|known| known.key)
        })?;
        // Only the small boards have a Super image with rates of its own.
        let has_super = key.starts_with("jetson_orin_n");
        let is_super = table.map_or(self.named_super, |table| {
            table.modes.iter().any(|mode| mode.name.to_ascii_uppercase().contains("SUPER"))
        });
        Some(if has_super && is_super { format!("{key}_super") } else { key.to_owned() })
    }
}

/// The module among `nvidia,p3768-0000+p3767-0003-super`, `nvidia,p3767-0003`, `nvidia,tegra234`, separated by zeros.
fn module(compatible: &str) -> (Option<String>, bool) {
    let words = || compatible.split(['\0', ',', '+']);
    let is_super = words().any(|word| word.ends_with("-super"));
    let part = words().map(|word| word.strip_suffix("-super").unwrap_or(word)).find(|word| {
        let known = ["p3767-", "p3701-", "p3834-", "p3668-"].iter().any(|family| word.starts_with(family));
        known && word.len() == 10 && word.bytes().skip(6).all(|byte| byte.is_ascii_digit())
    });
    (part.map(str::to_owned), is_super)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn modules() {
        let of = |text: &str| module(text);
        let nano = "nvidia,p3768-0000+p3767-0003\0nvidia,p3767-0003\0nvidia,tegra234";
        assert_eq!(of(nano), (Some("p3767-0003".into()), false));
        assert_eq!(of("nvidia,p3768-0000+p3767-0003-super\0nvidia,p3767-0003"), (Some("p3767-0003".into()), true));
        assert_eq!(of("nvidia,p4071-0000+p3834-0008\0nvidia,tegra264"), (Some("p3834-0008".into()), false));
        assert_eq!(of("raspberrypi,5-model-b"), (None, false));
    }

    #[test]
    fn devices() {
        let gib = |count: f64| Some(Bytes::new(count * 1024f64.powi(3)));
        let model = |name: &str| Board { model: Some(name.to_owned()), ..Board::default() };
        let kit = model("NVIDIA Jetson Orin Nano Developer Kit");
        assert_eq!(kit.device(gib(7.4), None).as_deref(), Some("jetson_orin_nano_8gb"));
        assert_eq!(kit.device(gib(3.4), None).as_deref(), Some("jetson_orin_nano_4gb"));
        assert_eq!(kit.device(None, None), None, "memory tells them apart");
        let first = model("NVIDIA Jetson Nano Developer Kit");
        assert_eq!(first.device(gib(3.9), None).as_deref(), Some("jetson_nano"));
        assert_eq!(model("NVIDIA Jetson Nano 2GB Developer Kit").device(gib(1.9), None), None);
        // An image may call the board anything; the part does not change.
        let nx = Board { part: Some("p3767-0000".into()), named_super: true, ..kit.clone() };
        assert_eq!(nx.device(gib(15.2), None).as_deref(), Some("jetson_orin_nx_16gb_super"));
        let plain = Table::parse("< POWER_MODEL ID=0 NAME=MAXN >");
        assert_eq!(nx.device(None, Some(&plain)).as_deref(), Some("jetson_orin_nx_16gb"));
        let super_table = Table::parse("< POWER_MODEL ID=0 NAME=MAXN_SUPER >");
        assert_eq!(kit.device(gib(7.4), Some(&super_table)).as_deref(), Some("jetson_orin_nano_8gb_super"));
        let agx = Board { part: Some("p3701-0005".into()), ..Board::default() };
        assert_eq!(agx.device(None, Some(&super_table)).as_deref(), Some("jetson_agx_orin_64gb"));
        assert_eq!(model("NVIDIA Jetson TX2").device(gib(8.0), None), None);
    }

    #[test]
    fn every_key_is_in_the_registry() {
        let registry = roofline_core::Registry::builtin();
        for key in PARTS.iter().map(|known| known.key).chain(MODELS.iter().map(|known| known.key)) {
            assert_eq!(registry.find(key).unwrap().key, key);
            if key.starts_with("jetson_orin_n") {
                assert!(registry.find(&format!("{key}_super")).is_ok(), "{key}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(?s)(nvidia,)?[p0-9+,\\-]{0,40}.{0,20}") {
            let _ = module(&text);
        }
    }
}
