//! The error of a program.

use std::error::Error;
use std::fmt;

/// Any error, for the result of `main`: it is printed as a chain of sentences.
pub(crate) struct Report(Box<dyn Error>);

impl<E: Into<Box<dyn Error>>> From<E> for Report {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.0.to_string();
        let mut source = self.0.source();
        while let Some(error) = source {
            // The errors of this crate contain the texts of their causes; those of others may not.
            let cause = error.to_string();
            if !text.contains(&cause) {
                text = format!("{text}: {cause}");
            }
            source = error.source();
        }
        f.write_str(&text)
    }
}
