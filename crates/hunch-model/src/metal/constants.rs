//! Constants of kernels: structs with the fields of the shaders' structs, in their order. A test compares all of them with
//! the text of the shaders. Values are set where the kernels are dispatched.

/// Type of a constant's field.
pub(super) trait ConstantWord: Copy {
    /// Name of the type in the shaders.
    #[cfg(test)]
    const TYPE: &'static str;

    /// Returns the bits.
    fn word(self) -> u32;
}

impl ConstantWord for u32 {
    #[cfg(test)]
    const TYPE: &'static str = "uint";

    fn word(self) -> u32 {
        self
    }
}

impl ConstantWord for f32 {
    #[cfg(test)]
    const TYPE: &'static str = "float";

    fn word(self) -> u32 {
        self.to_bits()
    }
}

/// Declares the constants of a kernel, with the fields of the shader's struct in their order.
macro_rules! constants {
    ($(#[$docs:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? }) => {
        $(#[$docs])*
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $name {
            $(pub(super) $field: $type),*
        }

        impl $name {
            const COUNT: usize = [$(stringify!($field)),*].len();

            /// Types and names of the fields.
            #[cfg(test)]
            pub(super) const FIELDS: &'static [(&'static str, &'static str)] =
                &[$((<$type as $crate::metal::constants::ConstantWord>::TYPE, stringify!($field))),*];

            /// Returns the fields as the kernel reads them.
            pub(super) fn words(self) -> [u32; Self::COUNT] {
                [$($crate::metal::constants::ConstantWord::word(self.$field)),*]
            }
        }
    };
}
pub(super) use constants;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::attention::AttentionConstants;
    use super::super::choice::{ChoiceConstants, DrawConstants};
    use super::super::convolution::ConvolutionConstants;
    use super::super::delta_net::DeltaNetConstants;
    use super::super::experts::{JoinConstants, RouteConstants};
    use super::super::heads::HeadsConstants;
    use super::super::multiply::ProductConstants;
    use super::super::rows::{CopyConstants, GateConstants, NormConstants};
    use super::super::shaders;

    type Fields = Vec<(String, String)>;

    /// Returns the fields of a struct of the shaders.
    fn of_shader(name: &str) -> Fields {
        let start = format!("struct {name} {{");
        let text =
            shaders::ALL.iter().find_map(|text| text.split_once(&start)).expect("the shaders have it").1;
        let body = text.split_once("};").expect("the struct ends").0;
        let fields = body.lines().filter_map(|line| line.split_once(';'));
        let split = fields.filter_map(|(field, _)| field.trim().split_once(' '));
        split.map(|(kind, name)| (kind.to_owned(), name.trim().to_owned())).collect()
    }

    #[test]
    fn fields_are_those_of_the_shaders() {
        let all = BTreeMap::from([
            ("Attention", AttentionConstants::FIELDS),
            ("Choice", ChoiceConstants::FIELDS),
            ("Convolution", ConvolutionConstants::FIELDS),
            ("Copy", CopyConstants::FIELDS),
            ("DeltaNet", DeltaNetConstants::FIELDS),
            ("Draw", DrawConstants::FIELDS),
            ("Gate", GateConstants::FIELDS),
            ("Heads", HeadsConstants::FIELDS),
            ("Join", JoinConstants::FIELDS),
            ("Norm", NormConstants::FIELDS),
            ("Product", ProductConstants::FIELDS),
            ("Route", RouteConstants::FIELDS),
        ]);
        for (name, fields) in &all {
            let own: Fields = fields.iter().map(|(kind, name)| ((*kind).into(), (*name).into())).collect();
            assert_eq!(own, of_shader(name), "{name}");
        }
        for text in shaders::ALL {
            for (at, _) in text.match_indices("constant ") {
                let words = &text[at + "constant ".len()..];
                let Some((name, _)) = words.split_once('&').filter(|(name, _)| !name.contains([' ', '\n']))
                else {
                    continue;
                };
                assert!(all.contains_key(name), "the shaders read {name}, which has no constants here");
            }
        }
    }
}
