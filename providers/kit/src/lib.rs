//! Pure helpers that every engine provider would otherwise rewrite.
//!
//! Each module answers one question from documents alone: which GPUs ([`gpu`]), which CUDA toolkit and
//! host compiler ([`cuda`]), how a cmake project is built ([`cmake`]), which tools and packages
//! ([`tools`]), what a list of flags means ([`flags`]) and whether a program knows them ([`help`]),
//! which environment ([`environment`]), what a model is called ([`model`]), whether a program that was
//! asked started at all ([`observed`]), which image and what is mounted ([`container`]), how an engine
//! that runs already is attached to ([`external`]), how Python packages are installed ([`python`]), how
//! much device memory a model needs ([`vram`]), what last words mean ([`diagnosis`]). What is particular
//! to one engine stays in its provider.
//!
//! With the feature `testing` there is what tests of a provider need (`testing`).

pub mod cmake;
pub mod container;
pub mod cuda;
pub mod diagnosis;
pub mod environment;
pub mod external;
pub mod flags;
pub mod gpu;
pub mod help;
pub mod model;
pub mod observed;
pub mod python;
#[cfg(feature = "testing")]
pub mod testing;
pub mod tools;
pub mod vram;
