//! The macro for the number types of the interfaces other than NetworkDirect.

/// Defines a number type with named constants. The type can hold numbers without a name.
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

            /// Creates the value with this number.
            pub const fn from_code(code: u32) -> Self {
                Self(code)
            }

            /// Returns the number.
            pub const fn code(self) -> u32 {
                self.0
            }

            /// Returns the name without the prefix of the C header, `None` for a number without a name.
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
