//! The shape that the number types of the other vocabularies share.

/// A number with names for the values we know, for the vocabularies other than NetworkDirect's.
macro_rules! numbers {
    (
        $(#[$type_doc:meta])* $type:ident;
        $($(#[$doc:meta])* $name:ident = $code:literal;)*
    ) => {
        $(#[$type_doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $type(u32);

        impl $type {
            $($(#[$doc])* pub const $name: Self = Self($code);)*

            /// Every value that has a name, in numeric order.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The value with this number, known or not.
            pub const fn from_code(code: u32) -> Self {
                Self(code)
            }

            /// The number.
            pub const fn code(self) -> u32 {
                self.0
            }

            /// The name, without the prefix that its header gives it; `None` for a number that has none.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 { $($code => Some(stringify!($name)),)* _ => None }
            }
        }

        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}
pub(super) use numbers;
